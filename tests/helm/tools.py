"""Helm itself, and the values that the chart is tested with."""

import os
import subprocess
from pathlib import Path

from tests import ROOT
from tests.support.patience import patience

TOOLS = ROOT / os.environ.get("HELM_TOOLS", ".cache/helm")
HERE = Path(__file__).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(TOOLS / "helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
