"""Helm, kubectl, the schemas of Kubernetes' API, and the values that the chart is tested with."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.support.chart import CHART
from tests.support.patience import patience

TOOLS = ROOT / os.environ.get("HELM_TOOLS", ".cache/helm")
HERE = Path(__file__).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))
SCHEMAS = {"1.20": "venv-old", "1.24": "venv-old", "1.37": "venv"}
"""Environments of the versions' schemas: a release of kubernetes-validate has the latest dozen."""
OF_1_21 = {"service", "egress", "everything", "daemonset"}
"""Values that need Kubernetes 1.21: EndpointSlices, and the Service's internalTrafficPolicy."""


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(TOOLS / "helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60))


def kubectl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(TOOLS / "kubectl"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60))


def template(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return helm("template", "kvgate", str(CHART), "--namespace", "llm", *arguments)


def asked(*arguments: str, venv: str = "venv") -> Any:
    command = [str(TOOLS / venv / "bin/python"), str(HERE / "helm4.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def problems(version: str, *paths: Path) -> tuple[dict[str, list[str]], set[str]]:
    """Return what is wrong in the manifests of each file, and the kinds that have no schema."""
    found = asked("validate", version, *map(str, paths), venv=SCHEMAS[version])
    assert len(found) == len(paths)
    unknown = {
        line.removeprefix("unknown: ")
        for lines in found.values()
        for line in lines
        if line.startswith("unknown: ")
    }
    wrong = {
        name: [line for line in lines if not line.startswith("unknown: ")] for name, lines in found.items()
    }
    return {name: lines for name, lines in wrong.items() if lines}, unknown
