"""The chart's golden renders beside the gateway that they start; `make test-helm` holds them to real Helm."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import by_key
from gateway.http.address import worker_url
from gateway.runtime.build import VERSION
from tests import ROOT
from tests.support.chart import BLOCK, CHART, GOLDEN, GUIDE, guide_manifests, objects, pod_of

SCALING = ROOT / "docs/guides/autoscaling.md"
RENDERS = sorted(GOLDEN.glob("*.yaml"))
SET = re.compile(r"--set(?:-string)? '?([\w.]+)=")


def guide_values() -> list[dict[str, Any]]:
    texts = GUIDE.read_text() + SCALING.read_text()
    blocks = [yaml.safe_load(text) for text in BLOCK.findall(texts)]
    return [each for each in blocks if "kind" not in each]


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
    pods = [pod_of(render), *[each["spec"] for each in objects(render, "Pod")]]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
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


def test_selectors_find_the_pods_of_the_deployment(render: Path) -> None:
    (deployment,) = objects(render, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    selectors = [each["spec"]["selector"] for each in objects(render, "Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in objects(render, "PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in objects(render, "NetworkPolicy")]
    assert all(selector.items() <= labels for selector in selectors)
    tests = [each["metadata"]["labels"] for each in objects(render, "Pod")]
    assert not any(selector.items() <= found.items() for selector in selectors for found in tests)


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
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = ("resources.", "monitoring.dashboard.labels.")
    given = {path for path in paths_of(values) if not path.startswith(free)}
    assert known_values() - {"global"} == given


def test_the_guide_s_values_exist_and_its_roles_only_list_and_watch() -> None:
    names = set(SET.findall(GUIDE.read_text() + SCALING.read_text()))
    known = known_values()
    free = ("workers.selector.",)
    assert names and all(name in known or name.startswith(free) for name in names)
    for values in guide_values():
        assert {p for p in paths_of(values) if not p.startswith(free)} <= known
    roles = [each for each in guide_manifests() if each["kind"] == "Role"]
    assert roles and all(rule["verbs"] == ["list", "watch"] for role in roles for rule in role["rules"])


def test_the_chart_has_the_version_of_the_gateway() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
