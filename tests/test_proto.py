"""Code generated from proto/ is current, and keeps the names and numbers of the contract."""

import subprocess
import sys
from pathlib import Path

from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from gateway.replication.codec import SERVICE
from gateway.replication.messages import VERSION

ROOT = Path(__file__).parent.parent
SOURCE = "kvgate/v1/kv_events.proto"


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """Generated code is compared without its head, in which protoc writes its own version."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--pyi_out={tmp_path}", SOURCE], cwd=ROOT, check=True, timeout=60)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))
    assert [path.name for path in made] == ["kv_events_pb2.py", "kv_events_pb2.pyi"]
    for path in made:
        fresh, committed = (tmp_path / path).read_text(), (ROOT / "gateway/proto" / path).read_text()
        assert _body(fresh) == _body(committed), f"run `make proto`: {path}"


def _body(text: str) -> str:
    return text[text.find("DESCRIPTOR") :]


def test_service_and_version_are_those_of_the_contract() -> None:
    assert pb.DESCRIPTOR.services_by_name["KvEvents"].full_name == SERVICE
    assert f"of this contract: {VERSION}" in (ROOT / "proto" / SOURCE).read_text()


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
