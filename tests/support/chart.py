"""The Helm chart, and the manifests that it makes."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT

CHART = ROOT / "deploy/helm/kvgate"
GOLDEN = ROOT / "tests/helm/golden"
GUIDE = ROOT / "docs/guides/kubernetes.md"
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def guide_manifests() -> list[dict[str, Any]]:
    """Manifests in the guide; blocks without a kind are values."""
    blocks = [each for text in BLOCK.findall(GUIDE.read_text()) for each in yaml.safe_load_all(text)]
    return [each for each in blocks if "kind" in each]


@cache
def manifests(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def objects(path: Path, kind: str) -> list[Any]:
    return [each for each in manifests(path) if each["kind"] == kind]


def pod_of(path: Path) -> Any:
    (deployment,) = objects(path, "Deployment")
    return deployment["spec"]["template"]["spec"]
