"""System calls that a container may make by default: what `RuntimeDefault` of a pod means to CRI-O."""

import json
import platform
from pathlib import Path
from typing import Any

PROFILE = Path("/usr/share/containers/seccomp.json")
"""Comes with buildah from Debian."""
ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}


def default_filter() -> dict[str, Any]:
    """Return the filter as a runtime reads it, for a container without capabilities on this machine."""
    profile = json.loads(PROFILE.read_text())
    arch = ARCHES[platform.machine()]
    families = [
        [each["architecture"], *(each["subArchitectures"] or [])]
        for each in profile["archMap"]
        if each["architecture"] == f"SCMP_ARCH_{platform.machine().upper()}"
    ]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": families[0],
        "syscalls": [_rule(each) for each in profile["syscalls"] if _applies(each["includes"], arch)],
    }


def _applies(includes: dict[str, list[str]], arch: str) -> bool:
    return not includes.get("caps") and arch in includes.get("arches", [arch])


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    return {name: rule[name] for name in ("names", "action", "args", "errnoRet") if rule.get(name)}
