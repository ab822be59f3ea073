"""Manifests of deploy/envoy/gateway-api: names and ports fit together, and kvgate accepts its arguments."""

from typing import Any

import pytest
import yaml

from gateway.cli import _load_epp, _parser
from gateway.epp.health import LIVE, READY
from tests import ROOT

FOLDER = ROOT / "deploy" / "envoy" / "gateway-api"
GATEWAYS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kvgate-epp.yaml")
POOLS = "inference.networking.k8s.io"
CLASSES = ("agentgateway", "gke-l7-regional-external-managed", "istio", "kgateway")
"""Gateway classes that charts and clusters bring."""


def objects(name: str) -> dict[str, dict[str, Any]]:
    """Objects of a file by kind and name."""
    found = yaml.safe_load_all((FOLDER / name).read_text())
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


EPP = objects("kvgate-epp.yaml")
CONTAINER = EPP["Deployment/kvgate-epp"]["spec"]["template"]["spec"]["containers"][0]
CONFIG = _load_epp(_parser().parse_args(CONTAINER["args"]))
"""Configuration that `kvgate epp` makes of the arguments of the Deployment."""


def test_every_gateway_has_its_manifest() -> None:
    ours = ["agentgateway", "envoy-ai-gateway", "envoy-gateway", "gke", "istio", "kgateway"]
    assert [f"{name}.yaml" for name in ours] == GATEWAYS


def test_the_pool_finds_its_picker_at_the_port_that_kvgate_opens() -> None:
    pool = EPP["InferencePool/vllm"]["spec"]
    picker = pool["endpointPickerRef"]
    service = EPP[f"Service/{picker['name']}"]["spec"]
    (port,) = service["ports"]
    opened = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert picker["port"]["number"] == port["port"] == CONFIG.epp.port == opened["grpc-ext-proc"]
    assert port["targetPort"] == port["port"] and CONFIG.epp.health_port == opened["grpc-health"]
    assert service["selector"] == EPP["Deployment/kvgate-epp"]["spec"]["template"]["metadata"]["labels"]
    assert picker["failureMode"] in ("FailOpen", "FailClose")


def test_kvgate_follows_the_pods_of_the_pool() -> None:
    pool, workers = EPP["InferencePool/vllm"]["spec"], EPP["Service/vllm-workers"]["spec"]
    assert workers["selector"] == pool["selector"]["matchLabels"] and workers["clusterIP"] == "None"
    (port,) = pool["targetPorts"]
    assert CONFIG.fleet.worker == [f"dns+http://vllm-workers:{port['number']}"]
    assert [each["targetPort"] for each in workers["ports"]] == [port["number"]]


def test_probes_ask_for_services_that_the_picker_knows() -> None:
    live, ready = CONTAINER["livenessProbe"]["grpc"], CONTAINER["readinessProbe"]["grpc"]
    assert live["service"] in LIVE and ready["service"] in READY
    assert live["port"] == ready["port"] == CONFIG.epp.health_port
    pod = EPP["Deployment/kvgate-epp"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > CONFIG.server.drain_timeout_s


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_route_leads_from_the_gateway_to_the_workers(name: str) -> None:
    found = objects(name)
    gateway, route = found["Gateway/llm"], found["HTTPRoute/llm"]["spec"]
    assert [each["name"] for each in route["parentRefs"]] == [gateway["metadata"]["name"]]
    (rule,) = route["rules"]
    (backend,) = rule["backendRefs"]
    if name == "gke.yaml":
        assert found["GCPBackendPolicy/vllm"]["spec"]["default"]["timeoutSec"] == 3600
    else:
        assert rule["timeouts"] == {"request": "0s"}
    if name == "envoy-gateway.yaml":
        assert f"Service/{backend['name']}" in EPP
    else:
        assert backend == {"group": POOLS, "kind": "InferencePool", "name": "vllm"}
    if f"GatewayClass/{gateway['spec']['gatewayClassName']}" not in found:
        assert gateway["spec"]["gatewayClassName"] in CLASSES


@pytest.mark.parametrize("name", GATEWAYS)
def test_policies_target_objects_of_their_file_and_the_picker(name: str) -> None:
    found = objects(name)
    for each in found.values():
        for target in each["spec"].get("targetRefs", []):
            assert f"{target['kind']}/{target['name']}" in found
        if target := each["spec"].get("targetRef"):
            assert f"{target['kind']}/{target['name']}" in EPP and target["group"] == POOLS
        for processor in each["spec"].get("extProc", []):
            (backend,) = processor["backendRefs"]
            assert (backend["name"], backend["port"]) == ("kvgate-epp", CONFIG.epp.port)
            assert processor["processingMode"]["request"]["body"] == "FullDuplexStreamed"
            assert not processor["failOpen"]  # Envoy Gateway refuses it beside FullDuplexStreamed
            check = processor["backendSettings"]["healthCheck"]
            assert check["active"]["grpc"]["service"] in READY and check["panicThreshold"] == 0
        if each["kind"] == "DestinationRule":
            assert f"Service/{each['spec']['host']}" in EPP


@pytest.mark.parametrize("name", ["envoy-ai-gateway.yaml", "envoy-gateway.yaml"])
def test_a_client_cannot_choose_its_destination(name: str) -> None:
    policy = objects(name)["ClientTrafficPolicy/llm"]["spec"]
    assert policy["headers"]["earlyRequestHeaders"]["remove"] == ["x-gateway-destination-endpoint"]


def test_gke_asks_the_port_that_the_pool_has() -> None:
    check = objects("gke.yaml")["HealthCheckPolicy/vllm"]["spec"]["default"]["config"]
    (port,) = EPP["InferencePool/vllm"]["spec"]["targetPorts"]
    assert check["httpHealthCheck"]["port"] == port["number"]
    assert CONFIG.epp.health_port == 9003  # where GKE asks for a picker's health
