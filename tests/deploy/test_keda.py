"""Manifests of deploy/keda: metrics, labels and metadata that kvgate has."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.worker import Role
from gateway.proto.kvgate.v1 import external_scaler_pb2 as pb
from gateway.scaling.keda import services_of
from gateway.scaling.metrics import METRICS
from tests import ROOT
from tests.support.ext_proc import FakeStream
from tests.support.worlds.planner import PlannerWorld

FOLDER = ROOT / "deploy" / "keda"
CHART = ROOT / "tests" / "helm" / "golden"
QUERY = re.compile(r'sum\((\w+)\{model="[^"]+",role="(\w+)"\}\)')
SPECS = {spec.name: spec for spec in METRICS}


def objects(path: Path, kind: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each and each["kind"] == kind]


SCALED = [
    (path.name, each)
    for path in (*sorted(FOLDER.glob("*.yaml")), CHART / "keda.yaml", CHART / "keda-prometheus.yaml")
    for each in objects(path, "ScaledObject")
]


def test_each_way_has_its_manifest() -> None:
    assert [name for name, _ in SCALED] == [
        "scaledobject-prometheus.yaml",
        "scaledobject.yaml",
        "keda.yaml",
        "keda.yaml",
        "keda-prometheus.yaml",
    ]


@pytest.mark.parametrize("scaled", [each for _, each in SCALED], ids=[name for name, _ in SCALED])
def test_the_trigger_of_a_scaled_object_is_answered(scaled: dict[str, Any]) -> None:
    spec = scaled["spec"]
    (trigger,) = spec["triggers"]
    metadata = trigger["metadata"]
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA reads strings"
    assert 0 <= spec["minReplicaCount"] <= spec["maxReplicaCount"]
    if trigger["type"] == "prometheus":
        found = QUERY.fullmatch(metadata["query"])
        assert found and SPECS[found[1]].labels == ("model", "role") and Role(found[2])
        assert metadata["threshold"] == "1"
        return
    assert trigger["type"] == "external-push" and re.fullmatch(
        r"[\w.-]+\.svc:9004", metadata["scalerAddress"]
    )
    world = PlannerWorld()
    world.planner.is_active(metadata["model"], Role(metadata.get("role", "both")))
    world.round()
    for path, service in services_of(world.planner).items():
        reference, stream = pb.ScaledObjectRef(scalerMetadata=metadata), FakeStream()
        asked = pb.GetMetricsRequest(scaledObjectRef=reference) if path.endswith(b"GetMetrics") else reference
        service(stream).message(asked.SerializeToString())
        assert len(stream.sent) == 1


def test_the_hpa_s_metric_is_the_adapter_s_and_kvgate_s() -> None:
    (hpa,) = objects(FOLDER / "hpa-prometheus-adapter.yaml", "HorizontalPodAutoscaler")
    (config,) = objects(FOLDER / "hpa-prometheus-adapter.yaml", "ConfigMap")
    (rule,) = yaml.safe_load(config["data"]["config.yaml"])["externalRules"]
    (metric,) = hpa["spec"]["metrics"]
    name = metric["external"]["metric"]["name"]
    assert name == rule["name"]["as"] == rule["seriesQuery"] and name in SPECS
    labels = metric["external"]["metric"]["selector"]["matchLabels"]
    assert tuple(labels) == SPECS[name].labels and Role(labels["role"])


def test_the_scaler_of_the_chart_is_at_the_address_of_its_scaled_objects() -> None:
    """The Service of each pod has the port that the argument opens."""
    (deployment,) = objects(CHART / "keda.yaml", "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    at = container["args"].index("--scaling-port")
    ports = {
        f"{each['metadata']['name']}.llm.svc:{port['port']}"
        for each in objects(CHART / "keda.yaml", "Service")
        for port in each["spec"]["ports"]
        if port["name"] == "scaler"
    }
    assert container["args"][at + 1] == "9004" and ports == {"kvgate-pods.llm.svc:9004"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/health", "a fleet of zero must get requests"
    addresses = {each["spec"]["triggers"][0]["metadata"]["scalerAddress"] for _, each in SCALED[2:4]}
    assert addresses == ports
