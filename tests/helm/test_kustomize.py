"""Kustomize base, rendered from the chart, and what real kubectl makes of it and of its overlay."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.http.address import worker_url
from tests import ROOT
from tests.helm.tools import kubectl, problems, template

pytestmark = pytest.mark.helm

FOLDER = ROOT / "deploy/kustomize"
FOLDERS = {"base": "llm", "overlays/example": "team-a"}
"""Folders, and the namespace of each."""


def built(folder: str) -> list[dict[str, Any]]:
    done = kubectl("kustomize", str(FOLDER / folder))
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (only,) = [each for each in found if each["kind"] == kind]
    return only


def test_the_base_is_what_the_chart_renders() -> None:
    done = template("--set", "workers.selector.app=vllm", "--skip-tests")
    path = FOLDER / "base/kvgate.yaml"
    if os.environ.get("UPDATE"):
        path.write_text(done.stdout)
    assert done.returncode == 0 and done.stdout == path.read_text()


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_object_is_in_one_namespace_and_valid(folder: str, tmp_path: Path) -> None:
    found = built(folder)
    assert {each["metadata"]["namespace"] for each in found} == {FOLDERS[folder]}
    labels = {each["metadata"]["labels"]["app.kubernetes.io/managed-by"] for each in found}
    (subject,) = of_kind(found, "RoleBinding")["subjects"]
    assert labels == {"kustomize"} and subject["namespace"] == FOLDERS[folder]
    path = tmp_path / "built.yaml"
    path.write_text(yaml.safe_dump_all(found))
    for version in ("1.24", "1.37"):
        assert problems(version, path) == ({}, set())


@pytest.mark.parametrize(
    ("folder", "url"),
    [
        ("base", "k8s://llm/pods?app=vllm&port=8000"),
        ("overlays/example", "k8s://team-a/pods?app=sglang&port=30000"),
    ],
)
def test_gateways_look_for_workers_in_their_own_namespace(folder: str, url: str) -> None:
    deployment = of_kind(built(folder), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (source,) = [each["valueFrom"] for each in container["env"] if each["name"] == "NAMESPACE"]
    assert source == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    args = [each.replace("$(NAMESPACE)", FOLDERS[folder]) for each in container["args"]]
    assert args[1:3] == ["--worker", worker_url(url)]


def test_the_overlay_sets_image_replicas_and_redis() -> None:
    deployment = of_kind(built("overlays/example"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 2 and container["image"] == "registry.example/kvgate:0.1.0"
    assert {"name": "KVGATE_REDIS", "value": "redis://valkey:6379"} in container["env"]
