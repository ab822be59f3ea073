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
SCALING = ROOT / "docs/guides/autoscaling.md"
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def guide_blocks(guide: Path = GUIDE) -> list[Any]:
    return [each for text in BLOCK.findall(guide.read_text()) for each in yaml.safe_load_all(text)]


def guide_manifests() -> list[dict[str, Any]]:
    """Manifests in the guide; blocks without an API version are values."""
    return [each for each in guide_blocks() if "apiVersion" in each]


def guide_values(*guides: Path) -> list[dict[str, Any]]:
    """Values in guides."""
    blocks = [each for guide in guides for each in guide_blocks(guide)]
    return [each for each in blocks if "apiVersion" not in each]


@cache
def manifests(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def objects(path: Path, kind: str) -> list[Any]:
    return [each for each in manifests(path) if each["kind"] == kind]


def workloads(path: Path) -> list[Any]:
    """Deployments and DaemonSets; that of the gateways comes first."""
    found = [*objects(path, "DaemonSet"), *objects(path, "Deployment")]
    return sorted(found, key=lambda each: each["metadata"]["name"])


def pod_of(path: Path) -> Any:
    """The gateways' pod."""
    return workloads(path)[0]["spec"]["template"]["spec"]
