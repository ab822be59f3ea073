"""Manifests of deploy/envoy/gateway-api against the published types and schemas of each kind (npm's
kubernetes-models): fields that do not exist by TypeScript's compiler, values by the schemas."""

import json
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.support.patience import patience

pytestmark = pytest.mark.envoy

FILES = sorted((ROOT / "deploy" / "envoy" / "gateway-api").glob("*.yaml"))
PACKAGES = ROOT / ".cache" / "gateway-api" / "node_modules"
MODULES = {
    "v1": "kubernetes-models/v1",
    "apps/v1": "kubernetes-models/apps/v1",
    "gateway.networking.k8s.io/v1": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1",
    "gateway.envoyproxy.io/v1alpha1": "@kubernetes-models/envoy-gateway/gateway.envoyproxy.io/v1alpha1",
    "networking.istio.io/v1": "@kubernetes-models/istio/networking.istio.io/v1",
    "networking.gke.io/v1": "@kubernetes-models/gke/networking.gke.io/v1",
}
"""Modules with the kinds of a group and version. No package has InferencePool: tests/kube applies it."""

Manifest = dict[str, Any]


def manifests(path: Path) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] != "InferencePool"]


def run(folder: Path, name: str, lines: list[str], *command: str) -> str:
    """Run a command with a file of these lines, beside the packages; return its output."""
    link = folder / "node_modules"
    if not link.is_symlink():
        link.symlink_to(PACKAGES)
    (folder / name).write_text("\n".join(lines))
    done = subprocess.run([*command, name], cwd=folder, capture_output=True, text=True, timeout=patience(120))
    return done.stdout + done.stderr


def problems(found: list[Manifest], folder: Path) -> str:
    """Return the complaints of types and schemas about manifests; empty if all is right."""
    types, values = [], []
    for number, each in enumerate(found):
        kind, module = each["kind"], f"{MODULES[each['apiVersion']]}/{each['kind']}"
        text = json.dumps(each)
        types += [f'import type {{ I{kind} as T{number} }} from "{module}";']
        types += [f"export const m{number}: T{number} = {text};"]
        values += [f'import {{ {kind} as C{number} }} from "{module}";']
        values += [f"try {{ new C{number}({text}).validate(); }} catch (e) {{ console.log(e.message); }}"]
    tsc = str(PACKAGES / "typescript" / "bin" / "tsc")
    strict = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")
    of_types = run(folder, "types.mts", types, "node", tsc, *strict)
    return of_types + run(folder, "values.mjs", values, "node")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_keeps_types_and_schemas(path: Path, tmp_path: Path) -> None:
    found = manifests(path)
    assert found and problems(found, tmp_path) == ""


WRONG: Mapping[str, tuple[str, str, Manifest]] = {
    "a field that does not exist": ("HTTPRoute", "does not exist", {"timeout": "0s"}),
    "a value that no duration is": ("HTTPRoute", "must match pattern", {"timeouts": {"request": "0 s"}}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_found(case: str, tmp_path: Path) -> None:
    kind, message, edit = WRONG[case]
    found = deepcopy(next(each for path in FILES for each in manifests(path) if each["kind"] == kind))
    found["spec"]["rules"][0] |= edit
    assert message in problems([found], tmp_path)
