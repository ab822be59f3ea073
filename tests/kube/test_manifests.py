"""Manifests of the guides and of deploy/ on a real API server, and the guides' values with Helm."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helm.tools import HERE, TOOLS, helm
from tests.kube.definitions import CUSTOM
from tests.support.chart import BLOCK, CHART
from tests.support.patience import patience
from tests.support.real_cluster import RealCluster

pytestmark = pytest.mark.kube

GUIDES = [ROOT / "docs/guides/kubernetes.md", ROOT / "docs/guides/autoscaling.md"]
FILES = sorted(
    path
    for path in (ROOT / "deploy").rglob("*.y*ml")
    if not path.is_relative_to(CHART)
    and re.search("^apiVersion: (?!kustomize)", path.read_text(), re.MULTILINE)
)
KUSTOMIZED = sorted(path.parent for path in (ROOT / "deploy").rglob("kustomization.yaml"))
OLDER = {
    ("HorizontalPodAutoscaler", "autoscaling/v2"): "autoscaling/v2beta2",
    ("PodDisruptionBudget", "policy/v1"): "policy/v1beta1",
}
"""Versions that the API server of the tests is too old for, and those before them, with the same fields."""
SCHEMAS = "1.25,1.37"


def blocks(guide: Path) -> Iterator[tuple[int, str]]:
    """The YAML blocks of a page, with their lines."""
    text = guide.read_text()
    for found in BLOCK.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def loaded(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def is_manifest(text: str) -> bool:
    return all("apiVersion" in each for each in loaded(text))


BLOCKS = [pytest.param(text, id=f"{guide.name}:{line}") for guide in GUIDES for line, text in blocks(guide)]
VALUES = [each for each in BLOCKS if not is_manifest(str(each.values[0]))]
MANIFESTS = [each for each in BLOCKS if each not in VALUES] + [
    pytest.param(path.read_text(), id=path.relative_to(ROOT / "deploy").as_posix()) for path in FILES
]


def for_old_server(found: dict[str, Any]) -> dict[str, Any]:
    """A manifest as Kubernetes 1.20 takes it."""
    found["apiVersion"] = OLDER.get((found["kind"], found["apiVersion"]), found["apiVersion"])
    template = found.get("spec", {}).get("template", {}) if found["kind"] == "Deployment" else {}
    for container in template.get("spec", {}).get("containers", []):
        for name in ("livenessProbe", "readinessProbe", "startupProbe"):
            probe = container.get(name, {})
            if "grpc" in probe:  # of Kubernetes 1.24
                probe["tcpSocket"] = {"port": probe.pop("grpc")["port"]}
    return found


def test_there_is_something_to_apply() -> None:
    assert len(FILES) >= 8 and len(VALUES) >= 4 and len(MANIFESTS) >= len(FILES) + 2


@pytest.mark.parametrize("text", MANIFESTS)
def test_a_manifest_is_applied(text: str, cluster: RealCluster) -> None:
    applied(text, cluster)


@pytest.mark.parametrize("path", KUSTOMIZED, ids=lambda path: path.relative_to(ROOT / "deploy").as_posix())
def test_what_kustomize_makes_is_applied(path: Path, cluster: RealCluster) -> None:
    made = cluster.kubectl("kustomize", str(path))
    assert made.returncode == 0, made.stderr
    applied(made.stdout, cluster)


def applied(text: str, cluster: RealCluster) -> None:
    """Apply manifests, and delete what they made."""
    found = [for_old_server(each) for each in loaded(text)]
    for each in found:
        namespace = each["metadata"].get("namespace", "llm")
        if cluster.ask("GET", f"/api/v1/namespaces/{namespace}").status == 404:
            cluster.namespace(namespace)
    cluster.apply(*found)
    cluster.withdraw(*found)


def test_manifests_keep_the_schemas_of_newer_servers(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text("\n---\n".join(str(each.values[0]) for each in MANIFESTS))
    command = [str(TOOLS / "venv/bin/python"), str(HERE / "helm4.py"), "validate", SCHEMAS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    custom = {f"unknown: {kind}" for kind in CUSTOM}
    assert set(json.loads(done.stdout)["given"]) <= custom


@pytest.mark.parametrize("text", VALUES)
def test_values_are_rendered(text: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(text)
    done = helm("template", "kvgate", str(CHART), "--namespace", "llm", "--values", str(path))
    assert done.returncode == 0, done.stderr
    assert "kind: Service" in done.stdout


@pytest.mark.parametrize(("kind", "version"), OLDER)
def test_a_version_that_is_replaced_is_really_unknown(kind: str, version: str, cluster: RealCluster) -> None:
    group = cluster.ask("GET", f"/apis/{version}")
    assert group.status == 404, f"{kind}: {version} is served"
