"""The chart with real Helm 3 and 4, and its manifests by the schemas of Kubernetes 1.20, 1.24 and 1.37.

`UPDATE=1 make test-helm` writes the golden renders again.
"""

import base64
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helm.tools import OF_1_21, SCHEMAS, VALUES, asked, helm, problems, template
from tests.support.chart import CHART, GOLDEN, GUIDE, SCALING, guide_manifests, guide_values

pytestmark = pytest.mark.helm

WITHOUT_SCHEMA = {"ServiceMonitor", "PrometheusRule", "HTTPRoute", "InferencePool", "ScaledObject"}
"""Kinds of custom resources: their schemas are no part of Kubernetes."""


def manifests(text: str) -> list[Any]:
    return sorted(
        filter(None, yaml.safe_load_all(text)), key=lambda each: (each["kind"], each["metadata"]["name"])
    )


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_render_is_the_golden_one(values: Path) -> None:
    done = template("--values", str(values))
    assert done.returncode == 0, done.stderr
    golden = GOLDEN / values.name
    if os.environ.get("UPDATE"):
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text()


def test_there_is_no_golden_render_without_values() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {path.name for path in VALUES}


def test_helm_4_renders_the_same() -> None:
    by_values = asked("render", str(CHART), "llm", *map(str, VALUES))
    for values in VALUES:
        texts = [text for path, text in by_values[values.stem].items() if path.endswith(".yaml")]
        found = [each for text in texts for each in manifests(text)]
        expected = manifests((GOLDEN / values.name).read_text())
        assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected))
        assert "port-forward" in by_values[values.stem]["kvgate/templates/NOTES.txt"]


@pytest.mark.parametrize("version", ["1.24", "1.37"])
def test_manifests_are_valid_to_the_letter(version: str, tmp_path: Path) -> None:
    guide = tmp_path / "guide.yaml"
    guide.write_text(yaml.safe_dump_all(guide_manifests()))
    wrong, unknown = problems(version, *sorted(GOLDEN.iterdir()), guide)
    assert (wrong, unknown) == ({}, WITHOUT_SCHEMA)


def test_the_guides_values_render(tmp_path: Path) -> None:
    for values in guide_values(GUIDE, SCALING):
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump({"workers": {"selector": {"app": "vllm"}}} | values))
        done = template("--values", str(path))
        assert done.returncode == 0, (values, done.stderr)


def test_manifests_for_kubernetes_1_20_are_valid_there(tmp_path: Path) -> None:
    paths = []
    for values in VALUES:
        done = template("--values", str(values), "--kube-version", "1.20.2")
        if values.stem in OF_1_21:
            assert done.returncode != 0 and "needs Kubernetes 1.21" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            paths.append(tmp_path / values.name)
            paths[-1].write_text(done.stdout)
    wrong, unknown = problems("1.20", *paths)
    assert (wrong, unknown) == ({}, WITHOUT_SCHEMA)


def test_a_misspelt_field_would_be_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text((GOLDEN / "selector.yaml").read_text().replace("args:", "argz:"))
    for version in SCHEMAS:
        wrong, _ = problems(version, bad)
        assert any("argz" in line for line in wrong["bad"]), wrong


REFUSED = [
    ((), "kvgate needs workers"),
    (("workers.selctor.app=vllm",), "Additional property selctor is not allowed"),
    (("worker.selector.app=vllm",), "Additional property worker is not allowed"),
    (("workers.selector.app=vllm", "service.type=Cluster"), "service.type"),
    (("workers.selector.app=vllm", "epp.port=0"), "epp.port"),
    (("workers.selector.app=vllm", "replicaCount=two"), "replicaCount"),
    (("workers.selector.app=vllm", "httpRoute.enabled=true"), "httpRoute.parentRefs names no gateway"),
    (("workers.selector.app=vllm", "epp.inferencePool.create=true"), "needs epp.enabled"),
    (("workers.selector.app=vllm", "keda.enabled=true", "replicaCount=2"), "set keda.prometheusServer"),
    (("workers.selector.app=vllm", "keda.enabled=true", "processes=2"), "set keda.prometheusServer"),
    (("workers.selector.app=vllm", "keda.targets[0].name=vllm"), "model"),
    (("workers.selector.app=vllm", "workers.inferenceObjectives=true"), "needs workers.inferencePool"),
    (("workers.service=a", "epp.enabled=true", "epp.inferencePool.create=true"), "needs workers.selector"),
    (("workers.selector.app=a", "keda.enabled=true", "kind=DaemonSet"), "set keda.prometheusServer"),
    (("workers.selector.app=a", "kind=DaemonSet", "autoscaling.enabled=true"), "a gateway on each node"),
    (("workers.selector.app=a", "valkey.enabled=true", "redis.url=redis://a"), "both set"),
    (("workers.selector.app=a", "valkey.enabled=true", "redis.caSecret=a"), "both set"),
    (
        ("workers.urls[0]=http://a", "networkPolicy.enabled=true", "networkPolicy.restrictEgress=true"),
        "say in networkPolicy.egress where workers.urls are",
    ),
    (
        (
            "workers.selector.app=a",
            "workers.namespace=b",
            "epp.enabled=true",
            "epp.inferencePool.create=true",
        ),
        "are in one namespace",
    ),
]


@pytest.mark.parametrize(("values", "words"), REFUSED, ids=lambda each: str(each)[:40])
def test_wrong_values_are_refused_with_the_reason(values: tuple[str, ...], words: str) -> None:
    done = template(*[flag for value in values for flag in ("--set", value)])
    assert done.returncode != 0 and words in done.stderr


def misspelt(values: Any) -> Any:
    """The values with each key misspelt, at each level; the free ones of labels and the like as they are."""
    if isinstance(values, list):
        return [misspelt(each) for each in values]
    if not isinstance(values, dict):
        return values
    found = {key: misspelt(value) for key, value in values.items()}
    return found | {f"{key}z": values[key] for key in values}


def keys_of(values: Any, at: str = "") -> Iterator[str]:
    """Path of each key."""
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        path = f"{at}.{name}".lstrip(".")
        if isinstance(values, dict):
            yield path
        if isinstance(value, dict | list):
            yield from keys_of(value, path)


FREE = re.compile(
    r".*\.(annotations|labels|matchLabels|requests|limits)\..+|(podAnnotations|podLabels|nodeSelector"
    r"|workers\.selector)\..+|extraVolumes\.\d+\.[^.]+\..+"
)
"""Keys that users make up, and the insides of volumes, which the API itself checks."""


def test_every_value_is_refused_where_it_is_misspelt(tmp_path: Path) -> None:
    """All keys of values.yaml and of the values of these tests, at each level."""
    for path in (CHART / "values.yaml", *VALUES):
        values = yaml.safe_load(path.read_text())
        wrong = tmp_path / path.name
        wrong.write_text(yaml.safe_dump(misspelt(values)))
        done = template("--values", str(wrong))
        refused = set(re.findall(r"- ([\w.()]+): Additional property (\S+) is not allowed", done.stderr))
        named = {f"{where}.{key}".removeprefix("(root).") for where, key in refused}
        missed = {each for each in keys_of(values) if not FREE.match(each)} - {
            each.removesuffix("z") for each in named
        }
        assert done.returncode != 0 and not missed, (path.name, done.stderr)


def kinds(*arguments: str) -> dict[str, str]:
    """API versions of what is rendered, by kind."""
    done = template("--set", "workers.selector.app=vllm", *arguments)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each["apiVersion"] for each in manifests(done.stdout)}


def test_an_old_cluster_gets_the_versions_that_it_serves() -> None:
    scaled = ("--set", "autoscaling.enabled=true")
    new, old = kinds(*scaled), kinds(*scaled, "--kube-version", "1.20.2")
    assert (new["PodDisruptionBudget"], new["HorizontalPodAutoscaler"]) == ("policy/v1", "autoscaling/v2")
    assert old["PodDisruptionBudget"] == "policy/v1beta1"
    assert old["HorizontalPodAutoscaler"] == "autoscaling/v2beta2"
    refused = template("--set", "workers.service=vllm", "--kube-version", "1.20.2")
    assert refused.returncode != 0 and "workers.service needs Kubernetes 1.21" in refused.stderr


ROUTES = ("--set", "httpRoute.parentRefs[0].name=public", "--set-string", "httpRoute.enabled=auto")
MONITORING = (
    "--set",
    "monitoring.serviceMonitor.enabled=auto",
    "--set",
    "monitoring.prometheusRule.enabled=auto",
)


def test_auto_makes_custom_resources_where_they_are_served() -> None:
    served = ("--api-versions", "gateway.networking.k8s.io/v1", "--api-versions", "monitoring.coreos.com/v1")
    assert not {"HTTPRoute", "ServiceMonitor", "PrometheusRule"} & set(kinds(*ROUTES, *MONITORING))
    assert {"HTTPRoute", "ServiceMonitor", "PrometheusRule"} <= set(kinds(*ROUTES, *MONITORING, *served))
    beta = "gateway.networking.k8s.io/v1beta1"
    assert kinds(*ROUTES, "--api-versions", beta)["HTTPRoute"] == beta


def test_the_bundled_valkey_makes_a_password_where_no_secret_has_one() -> None:
    found = []
    for _ in range(2):
        done = template("--set", "workers.selector.app=vllm", "--set", "valkey.enabled=true")
        (secret,) = [each for each in manifests(done.stdout) if each["kind"] == "Secret"]
        found.append(base64.b64decode(secret["data"]["password"]))
    assert found[0] != found[1] and len(found[0]) == 32


def test_the_chart_is_without_findings_and_packs_its_files(tmp_path: Path) -> None:
    lint = helm("lint", "--strict", str(CHART), "--set", "workers.selector.app=vllm")
    assert lint.returncode == 0, lint.stdout
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    with tarfile.open(tmp_path / "kvgate-0.1.0.tgz") as archive:
        for name, source in (("alerts.yml", "alerts.yml"), ("grafana.json", "grafana.json")):
            member = archive.extractfile(f"kvgate/files/{name}")
            assert member and member.read() == (ROOT / "deploy" / source).read_bytes()
