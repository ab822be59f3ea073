"""The chart's life on a real API server: Helm 3 and 4 install, upgrade, roll back and uninstall it."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.tools import HERE, TOOLS, VALUES
from tests.support.chart import CHART, GOLDEN, manifests
from tests.support.patience import patience
from tests.support.real_cluster import RealCluster

pytestmark = pytest.mark.kube

TOO_NEW = {
    ("workers", "service"): "workers.service needs Kubernetes 1.21",
    ("service", "internalTrafficPolicy"): "service.internalTrafficPolicy needs Kubernetes 1.21",
}
"""Values that the API server of the tests is too old for, with the words of Helm's refusal."""
CHANGE = {"changed": "yes"}
Helm = Callable[..., None]


def _ran(cluster: RealCluster, *command: str, given: str = "") -> None:
    environment = os.environ | {"HOME": str(cluster.home)}
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=patience(120), env=environment
    )
    assert done.returncode == 0, done.stderr


def helm_3(cluster: RealCluster, verb: str, values: Any = None) -> None:
    given = [] if values is None else [str(CHART), "--values", "-"]
    revision = ["1"] if verb == "rollback" else []
    flags = [f"--kubeconfig={cluster.kubeconfig}", "--namespace=llm"]
    command = [str(TOOLS / "helm"), verb, "kvgate", *given, *revision, *flags]
    _ran(cluster, *command, given=yaml.safe_dump(values))


def helm_4(cluster: RealCluster, verb: str, values: Any = None) -> None:
    given = [] if values is None else [str(CHART), json.dumps(values)]
    python = str(TOOLS / "venv/bin/python")
    _ran(cluster, python, str(HERE / "helm4.py"), "release", verb, str(cluster.kubeconfig), "llm", *given)


def rendered(values: Path) -> set[tuple[str, str]]:
    """Kinds and names of the golden render, without those of `helm test`."""
    return {
        (each["kind"], each["metadata"]["name"])
        for each in manifests(GOLDEN / values.name)
        if "helm.sh/hook" not in each["metadata"].get("annotations", {})
    }


def installed(
    cluster: RealCluster, kinds: set[str], label: str = "app.kubernetes.io/instance=kvgate"
) -> list[Any]:
    """Objects of the release."""
    flags = ["--all-namespaces", f"--selector={label}", "--output=json"]
    done = cluster.kubectl("get", ",".join(sorted(kinds)), *flags)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["items"])


def labels_of_pods(found: list[Any]) -> Any:
    pods = [each["spec"]["template"] for each in found if "template" in each.get("spec", {})]
    (own,) = [each for each in pods if each["spec"]["containers"][0]["name"] == "kvgate"]
    return own["metadata"]["labels"]


@pytest.mark.parametrize("helm", [helm_3, helm_4])
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(
    values: Path, helm: Helm, cluster: RealCluster
) -> None:
    expected = rendered(values)
    given = yaml.safe_load(values.read_text())
    for (table, name), words in TOO_NEW.items():
        if name in given.get(table, {}):
            with pytest.raises(AssertionError, match=words):
                helm(cluster, "install", given)
            if installed(cluster, {"Secret"}, "owner=helm"):  # the record of the failed release
                helm(cluster, "uninstall")
            del given[table][name]
            given["workers"].setdefault("selector", {"app": "vllm"})
    try:
        _live(cluster, helm, given, expected)
    finally:
        if installed(cluster, {"Secret"}, "owner=helm"):
            helm(cluster, "uninstall")
    assert installed(cluster, {kind for kind, _ in expected}) == []


def _live(cluster: RealCluster, helm: Helm, given: Any, expected: set[tuple[str, str]]) -> None:
    kinds = {kind for kind, _ in expected}
    helm(cluster, "install", given)
    found = installed(cluster, kinds)
    assert {(each["kind"], each["metadata"]["name"]) for each in found} == expected
    before = labels_of_pods(found)
    helm(cluster, "upgrade", given | {"podLabels": given.get("podLabels", {}) | CHANGE})
    assert labels_of_pods(installed(cluster, kinds)) == before | CHANGE
    helm(cluster, "rollback")
    assert labels_of_pods(installed(cluster, kinds)) == before
