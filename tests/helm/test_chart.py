"""The chart with real Helm 3 and 4, and its manifests by the schemas of Kubernetes 1.25 and 1.37.

`UPDATE=1 make test-helm` writes the golden renders again.
"""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helm.tools import HERE, TOOLS, VALUES, helm
from tests.support.chart import CHART, GOLDEN, guide_manifests
from tests.support.patience import patience

pytestmark = pytest.mark.helm

VERSIONS = ("1.25", "1.37")
WITHOUT_SCHEMA = {"ServiceMonitor", "PrometheusRule", "HTTPRoute", "InferencePool", "ScaledObject"}
"""Kinds of custom resources: their schemas are no part of Kubernetes."""


def template(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return helm("template", "kvgate", str(CHART), "--namespace", "llm", *arguments)


def asked(*arguments: str) -> Any:
    command = [str(TOOLS / "venv/bin/python"), str(HERE / "helm4.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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


def test_manifests_are_valid_to_the_letter(tmp_path: Path) -> None:
    guide = tmp_path / "guide.yaml"
    guide.write_text(yaml.safe_dump_all(guide_manifests()))
    found = asked("validate", ",".join(VERSIONS), *map(str, sorted(GOLDEN.iterdir())), str(guide))
    assert len(found) == len(VALUES) + 1
    wrong = {
        name: [line for line in lines if not line.startswith("unknown: ")] for name, lines in found.items()
    }
    assert not any(wrong.values()), wrong
    unknown = {line.removeprefix("unknown: ") for lines in found.values() for line in lines}
    assert unknown == WITHOUT_SCHEMA


def test_a_misspelt_field_would_be_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text((GOLDEN / "selector.yaml").read_text().replace("args:", "argz:"))
    lines = asked("validate", VERSIONS[1], str(bad))["bad"]
    assert any("argz" in line for line in lines), lines


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


def test_the_chart_is_without_findings_and_packs_its_files(tmp_path: Path) -> None:
    lint = helm("lint", "--strict", str(CHART), "--set", "workers.selector.app=vllm")
    assert lint.returncode == 0, lint.stdout
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    with tarfile.open(tmp_path / "kvgate-0.1.0.tgz") as archive:
        for name, source in (("alerts.yml", "alerts.yml"), ("grafana.json", "grafana.json")):
            member = archive.extractfile(f"kvgate/files/{name}")
            assert member and member.read() == (ROOT / "deploy" / source).read_bytes()
