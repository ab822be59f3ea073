"""The chart's golden renders beside the gateway that they start; `make test-helm` holds them to real Helm."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli
from gateway.config import by_key, load
from gateway.http.address import worker_url
from gateway.runtime.build import VERSION
from tests import ROOT
from tests.support.chart import (
    CHART,
    GOLDEN,
    GUIDE,
    SCALING,
    guide_manifests,
    guide_values,
    objects,
    pod_of,
    workloads,
)

RENDERS = sorted(GOLDEN.glob("*.yaml"))
SET = re.compile(r"--set(?:-string)? '?([\w.]+)=")


@pytest.fixture(params=RENDERS, ids=lambda path: path.stem)
def render(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_are_a_dozen_renders() -> None:
    assert len(RENDERS) >= 12


def test_arguments_and_variables_are_options_of_the_gateway(render: Path) -> None:
    (container,) = pod_of(render)["containers"]
    assert container["args"][0] == "serve"
    options = by_key().values()
    flags = {each.flag for each in options if each.has_flag} | {"--config"}
    given = [each for each in container["args"] if each.startswith("--")]
    assert set(given) <= flags
    variables = {each["name"] for each in container["env"]} - {"HF_HOME", "HF_TOKEN"}
    assert variables <= {each.variable for each in options}


def test_workers_are_urls_in_their_normal_form(render: Path) -> None:
    arguments = pod_of(render)["containers"][0]["args"]
    workers = [value for flag, value in zip(arguments, arguments[1:], strict=False) if flag == "--worker"]
    assert workers and [worker_url(each) for each in workers] == workers


def test_the_grace_of_a_pod_fits_its_drain(render: Path) -> None:
    pod = pod_of(render)
    (container,) = pod["containers"]
    drain_s = int(container["args"][container["args"].index("--drain-timeout-s") + 1])
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= drain_s + pause_s + 5


def test_pods_keep_the_restricted_standard(render: Path) -> None:
    pods = [each["spec"]["template"]["spec"] for each in workloads(render)]
    for pod in [*pods, *[each["spec"] for each in objects(render, "Pod")]]:
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"].get("runAsUser", 1) > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_mounts_have_their_volumes_and_files(render: Path) -> None:
    pod = pod_of(render)
    (container,) = pod["containers"]
    volumes = {each["name"] for each in pod["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert volumes == set(mounts)
    files = [each.get("value", "") for each in container["env"] if each["name"].endswith("_FILE")]
    assert all(str(Path(file).parent) in mounts.values() for file in files)


def rules(render: Path) -> Iterator[dict[str, Any]]:
    for role in objects(render, "Role"):
        yield from role["rules"]


def test_roles_list_and_watch_what_the_workers_urls_need(render: Path) -> None:
    given = {resource for rule in rules(render) for resource in rule["resources"]}
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules(render))
    assert not objects(render, "ClusterRole")
    urls = [each for each in pod_of(render)["containers"][0]["args"] if each.startswith("k8s://")]
    needed = set()
    for url in urls:
        needed |= {"endpointslices"} if "/service/" in url else {"pods"}
        needed |= {"inferencepools"} if "/inferencepool/" in url else set()
    if any("POOL_OBJECTS" in each["name"] for each in pod_of(render)["containers"][0]["env"]):
        needed |= {"inferenceobjectives", "inferencemodelrewrites"}
    assert given == needed
    assert pod_of(render)["automountServiceAccountToken"] is bool(urls)


def selectors(render: Path) -> Iterator[dict[str, str]]:
    yield from (each["spec"]["selector"] for each in objects(render, "Service"))
    for kind in ("PodDisruptionBudget", "Deployment", "DaemonSet"):
        yield from (each["spec"]["selector"]["matchLabels"] for each in objects(render, kind))
    yield from (each["spec"]["podSelector"]["matchLabels"] for each in objects(render, "NetworkPolicy"))


def test_each_selector_finds_the_pods_of_one_workload(render: Path) -> None:
    pods = [each["spec"]["template"]["metadata"]["labels"].items() for each in workloads(render)]
    pods += [each["metadata"]["labels"].items() for each in objects(render, "Pod")]
    for selector in selectors(render):
        assert [selector.items() <= labels for labels in pods].count(True) == 1


def egress(render: Path) -> list[dict[str, Any]]:
    (policy,) = [
        each for each in objects(GOLDEN / render, "NetworkPolicy") if "valkey" not in each["metadata"]["name"]
    ]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    rules: list[dict[str, Any]] = policy["spec"]["egress"]
    return rules


DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
API = {"ports": [{"port": 443}, {"port": 6443}]}


def test_restricted_gateways_reach_engines_by_their_labels_and_the_bundled_valkey() -> None:
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "llm"}}
    dns, api, engines, redis = egress(GOLDEN / "valkey.yaml")
    assert (dns, api) == (DNS, API)
    labels = {"matchLabels": {"app": "vllm"}}
    assert engines == {"to": [{"namespaceSelector": namespace, "podSelector": labels}]}
    (valkey,) = redis["to"]
    pods = workloads(GOLDEN / "valkey.yaml")[1]["spec"]["template"]["metadata"]["labels"]
    assert valkey["podSelector"]["matchLabels"] == pods and redis["ports"] == [{"port": 6379}]


def test_restricted_gateways_reach_a_service_s_namespace_each_redis_and_what_is_named() -> None:
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "llm"}}
    dns, api, engines, redis, *further = egress(GOLDEN / "egress.yaml")
    assert (dns, api, engines) == (DNS, API, {"to": [{"namespaceSelector": namespace}]})
    assert {each["port"] for each in redis["ports"]} == {26379, 26380, 6379}, "Sentinels, and the master"
    assert [sorted(rule) for rule in further] == [["ports", "to"], ["ports"]]


def test_clients_that_are_named_do_not_shut_out_helm_s_test() -> None:
    (policy,) = objects(GOLDEN / "network.yaml", "NetworkPolicy")
    (pod,) = objects(GOLDEN / "network.yaml", "Pod")
    peers = [peer.get("podSelector") for peer in policy["spec"]["ingress"][0]["from"]]
    assert {"matchLabels": pod["metadata"]["labels"]} in peers and len(peers) == 2


def test_a_daemon_set_has_the_same_pod_and_no_budget_of_disruptions() -> None:
    path = GOLDEN / "daemonset.yaml"
    (found,) = workloads(path)
    assert found["kind"] == "DaemonSet" and "replicas" not in found["spec"]
    assert not objects(path, "PodDisruptionBudget") and "topologySpreadConstraints" not in pod_of(path)
    same = pod_of(GOLDEN / "selector.yaml")
    assert pod_of(path)["containers"][0]["args"] == same["containers"][0]["args"]
    assert objects(path, "Service")[0]["spec"]["internalTrafficPolicy"] == "Local"


def test_rules_and_board_are_those_of_deploy() -> None:
    (found,) = objects(GOLDEN / "monitoring.yaml", "PrometheusRule")
    assert found["spec"] == yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())
    (board,) = objects(GOLDEN / "monitoring.yaml", "ConfigMap")
    assert json.loads(board["data"]["kvgate.json"]) == json.loads((ROOT / "deploy/grafana.json").read_text())
    (monitor,) = objects(GOLDEN / "monitoring.yaml", "ServiceMonitor")
    admin = [each["metadata"]["labels"].items() for each in objects(GOLDEN / "monitoring.yaml", "Service")]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert sum(wanted <= labels for labels in admin) == 1


def test_a_pool_leads_to_the_picker_and_the_picker_to_the_pool() -> None:
    (pool,) = objects(GOLDEN / "epp.yaml", "InferencePool")
    (service, _) = objects(GOLDEN / "epp.yaml", "Service")
    reference = pool["spec"]["endpointPickerRef"]
    assert reference["name"] == service["metadata"]["name"]
    assert reference["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    assert (
        f"k8s://llm/inferencepool/{pool['metadata']['name']}"
        in pod_of(GOLDEN / "epp.yaml")["containers"][0]["args"]
    )


def paths_of(values: Any, prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from paths_of(value, f"{prefix}{name}.")


def known_values() -> set[str]:
    def walk(schema: Any, prefix: str) -> Iterator[str]:
        for name, inner in schema.get("properties", {}).items():
            yield prefix + name
            yield from walk(inner, f"{prefix}{name}.")

    return set(walk(json.loads((CHART / "values.schema.json").read_text()), ""))


def test_the_schema_has_exactly_the_values() -> None:
    """Values below `resources` and `affinity` are Kubernetes' own, and not listed."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = ("resources.", "affinity.", "monitoring.dashboard.labels.", "global")
    given = {path for path in paths_of(values) if not path.startswith(free)}
    assert {path for path in known_values() if not path.startswith(free)} == given


def test_the_guide_s_values_exist_and_its_roles_only_list_and_watch() -> None:
    names = set(SET.findall(GUIDE.read_text() + SCALING.read_text()))
    known = known_values()
    free = ("workers.selector.",)
    assert names and all(name in known or name.startswith(free) for name in names)
    for values in guide_values(GUIDE, SCALING):
        assert {p for p in paths_of(values) if not p.startswith(free)} <= known
    roles = [each for each in guide_manifests() if each["kind"] == "Role"]
    assert roles and all(rule["verbs"] == ["list", "watch"] for role in roles for rule in role["rules"])


VALUE = re.compile(r"`([a-z]\w*(?:\.\w+)*)(?:: \w+)?`")
TABLE_KEY = re.compile(r"`\[(\w+)\] (\w+)`")


def test_the_comparison_with_other_charts_names_values_and_options_that_exist() -> None:
    page = (ROOT / "docs/guides/kubernetes-charts.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    here = [cells[1] for cells in rows if len(cells) == 2]
    names = {name for cell in here for name in VALUE.findall(cell)}
    assert len(names) > 40 and names <= known_values(), names - known_values()
    options = set(TABLE_KEY.findall(page))
    config = load({}, environ={})
    assert len(options) > 10 and all(hasattr(getattr(config, table), key) for table, key in options)


def guide_containers() -> dict[str, Any]:
    """Containers of kvgate in the guide's manifests, by name."""
    pods = [
        each["spec"]["template"]["spec"] for each in guide_manifests() if "template" in each.get("spec", {})
    ]
    found = [(each, pod) for pod in pods for each in pod["containers"] if "/kvgate:" in each["image"]]
    for container, pod in found:
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert (
            container["securityContext"].items()
            >= pod_of(GOLDEN / "selector.yaml")["containers"][0]["securityContext"].items()
        )
    return {container["name"]: container for container, _ in found}


def test_the_guide_s_containers_are_what_kvgate_takes() -> None:
    found = guide_containers()
    agent = cli._parser().parse_args(found["kvgate-agent"]["args"])
    assert (agent.listen, agent.replay_port) == ("0.0.0.0:7070", "6557")
    (mount,) = found["kvgate-agent"]["volumeMounts"]
    assert str(Path(agent.token_file).parent) == mount["mountPath"]
    flags = {each.flag for each in by_key().values() if each.has_flag}
    assert {each for each in found["kvgate"]["args"] if each.startswith("--")} <= flags
    variables = {each["name"] for each in found["kvgate"]["env"]} - {"HF_HOME"}
    assert variables <= {each.variable for each in by_key().values()}


def test_the_chart_has_the_version_of_the_gateway() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
