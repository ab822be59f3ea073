"""Code generated from proto/ is current, and keeps the names and numbers of the contract."""

import subprocess
import sys
from pathlib import Path

from gateway.decide.services import DECIDE, REPORT, SESSION
from gateway.proto.kvgate.v1 import decide_pb2, external_scaler_pb2
from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from gateway.replication.codec import SERVICE
from gateway.replication.messages import VERSION
from gateway.scaling.keda import PATH
from tests.support.patience import patience

ROOT = Path(__file__).parent.parent
SOURCE = "kvgate/v1/kv_events.proto"
SCALER = "kvgate/v1/external_scaler.proto"
SOURCES = ["kvgate/v1/decide.proto", "kvgate/v1/ext_proc.proto", SCALER, SOURCE]


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """Generated code is compared without its head, in which protoc writes its own version."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--pyi_out={tmp_path}", *SOURCES], cwd=ROOT, check=True, timeout=patience(60))
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))
    assert [path.name for path in made] == [
        "decide_pb2.py",
        "decide_pb2.pyi",
        "ext_proc_pb2.py",
        "ext_proc_pb2.pyi",
        "external_scaler_pb2.py",
        "external_scaler_pb2.pyi",
        "kv_events_pb2.py",
        "kv_events_pb2.pyi",
    ]
    for path in made:
        fresh, committed = (tmp_path / path).read_text(), (ROOT / "gateway/proto" / path).read_text()
        assert _body(fresh) == _body(committed), f"run `make proto`: {path}"


def _body(text: str) -> str:
    return text[text.find("DESCRIPTOR") :]


def test_service_and_version_are_those_of_the_contract() -> None:
    assert pb.DESCRIPTOR.services_by_name["KvEvents"].full_name == SERVICE
    assert f"of this contract: {VERSION}" in (ROOT / "proto" / SOURCE).read_text()


def test_the_decision_service_is_served_at_the_paths_of_its_contract() -> None:
    service = decide_pb2.DESCRIPTOR.services_by_name["Decisions"]
    paths = {f"/{service.full_name}/{method.name}".encode() for method in service.methods}
    assert paths == {DECIDE, REPORT, SESSION}


def test_external_scaler_is_the_one_that_keda_publishes() -> None:
    """Names and numbers of KEDA 2's externalscaler.proto."""
    service = external_scaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"]
    served = {f"/{service.full_name}/{method.name}".encode() for method in service.methods}
    names = (b"IsActive", b"StreamIsActive", b"GetMetricSpec", b"GetMetrics")
    assert served == {b"/externalscaler.ExternalScaler/" + name for name in names}
    assert {PATH + name for name in names} == served
    messages = external_scaler_pb2.DESCRIPTOR.message_types_by_name
    assert {
        name: [(field.name, field.number) for field in message.fields] for name, message in messages.items()
    } == {
        "ScaledObjectRef": [("name", 1), ("namespace", 2), ("scalerMetadata", 3)],
        "IsActiveResponse": [("result", 1)],
        "GetMetricSpecResponse": [("metricSpecs", 1)],
        "MetricSpec": [("metricName", 1), ("targetSize", 2), ("targetSizeFloat", 3)],
        "GetMetricsRequest": [("scaledObjectRef", 1), ("metricName", 2)],
        "GetMetricsResponse": [("metricValues", 1)],
        "MetricValue": [("metricName", 1), ("metricValue", 2), ("metricValueFloat", 3)],
    }


def test_numbers_of_the_decision_service_stay() -> None:
    """Programs are built with the contract of another version."""
    numbers = {
        message.name: [(field.name, field.number) for field in message.fields]
        for message in decide_pb2.DESCRIPTOR.message_types_by_name.values()
    }
    assert [number for _, number in numbers["DecideRequest"]] == list(range(1, 11))
    assert numbers["DecideReply"] == [("decided", 1), ("queued", 2), ("rejected", 3)]
    assert numbers["Target"] == [("worker", 1), ("address", 2), ("url", 3), ("dp_rank", 4)]
    assert [number for _, number in numbers["Decided"]] == list(range(1, 15))
    assert numbers["ReportRequest"] == [
        ("decision_id", 1),
        ("first_token", 2),
        ("finished", 3),
        ("failed", 4),
    ]
    assert numbers["Usage"] == [("prompt_tokens", 1), ("output_tokens", 2), ("cached_tokens", 3)]


def test_field_numbers_are_those_of_the_contract() -> None:
    """Agents and gateways of other versions would misread a field number with a new meaning."""
    numbers = {
        message.name: {field.name: field.number for field in message.fields}
        for message in pb.DESCRIPTOR.message_types_by_name.values()
    }
    assert numbers["Stored"] == {
        "blocks": 1,
        "names": 2,
        "parent": 3,
        "parent_block": 4,
        "medium": 5,
        "group": 6,
    }
    assert numbers["Batch"] == {"epoch": 1, "seq": 2, "changes": 3, "position": 4}
    assert numbers["Change"] == {"stored": 1, "copied": 2, "removed": 3, "cleared": 4, "grouped": 5}
    assert list(numbers["Grouped"]) == ["names", "medium", "group", "kind", "block_size", "window"]
    assert list(numbers["Grouped"].values()) == [1, 2, 3, 4, 5, 6]
    assert numbers["Update"] == {"hello": 1, "snapshot": 2, "batch": 3, "status": 4, "sample": 5}
    asked = {"version": 1, "dp_rank": 2, "epoch": 3, "next_seq": 4, "sample_every_s": 5}
    assert numbers["SubscribeRequest"] == asked
