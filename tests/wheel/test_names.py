"""`kvgate` is the one name that the wheel takes: it works beside packages named `gateway` and `engines`."""

import ast
import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.wheel.demo import answers, demo
from tests.wheel.environment import done

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import kvgate
def fail(name):
    raise
found = [each.name for each in pkgutil.walk_packages(kvgate.__path__, "kvgate.", fail)]
files = {name: importlib.import_module(name).__file__ for name in found}
print(json.dumps({"files": files, "loaded": sorted(sys.modules)}))
"""
POLICY = """
from kvgate import Choice, pick_lowest


class Mine:
    name = "mine"

    def choose(self, query, candidates, rng):
        return Choice(pick_lowest([each.booked_tokens for each in candidates], rng), "mine")
"""


def test_each_file_of_the_wheel_is_in_kvgate_or_about_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (top,) = (archive.read(name).decode() for name in names if name.endswith("top_level.txt"))
    tops = {name.split("/")[0] for name in names}
    libraries = {name.split(".")[0] for name in tops if name.endswith(".so")}
    assert libraries == (set() if wheel.name.endswith("-none-any.whl") else {"kvgate__mypyc"})
    rest = {name for name in tops if not name.endswith(".so")}
    assert rest == {"kvgate", wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    assert set(top.split()) - libraries == {"kvgate"}


def test_each_file_of_the_folders_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("kvgate", "gateway", "engines"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                assert (name if folder == "kvgate" else f"kvgate/{name}") in names


def test_each_module_is_imported_beside_packages_of_the_same_names(python: Path) -> None:
    result = json.loads(done([str(python), "-P", "-c", IMPORT_ALL]))
    sources = [path for folder in ("gateway", "engines") for path in (ROOT / folder).rglob("*.py")]
    assert len(result["files"]) >= len(sources)
    assert all(Path(file).is_relative_to(python.parents[1]) for file in result["files"].values())
    ours = [name for name in result["loaded"] if name.split(".")[0] in ("gateway", "engines")]
    assert ours == []


def test_others_of_these_names_are_really_there(python: Path) -> None:
    for name in ("gateway", "engines"):
        ended = subprocess.run([python, "-P", "-c", f"import {name}"], capture_output=True, text=True)
        assert f"RuntimeError: {name} of others" in ended.stderr


MODULE = re.compile(
    r"(?:gateway|engines)(?:\.[a-z_][a-z_0-9]*)+\Z"
    r"|from (?:gateway|engines)[\w.]* import|import (?:gateway|engines)\b|-m (?:gateway|engines)\b"
)
"""Texts that are the name of a module, and programs that import one."""


@pytest.mark.parametrize("text", ["gateway.index.lua", "x; from engines.sim import y", "python -m gateway"])
def test_a_text_that_names_a_module_is_found(text: str) -> None:
    assert MODULE.search(text) and not MODULE.search("the gateway. It comes from engines, and is gateway.")


def test_no_text_names_a_module_by_its_place_in_the_checkout() -> None:
    """Such a name would be of another module in the wheel; `__package__` and `__name__` are right in both."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for folder in ("kvgate", "gateway", "engines")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.search(node.value)
    ]
    assert found == []


def test_the_command_and_the_module_are_one(python: Path) -> None:
    said = done([str(python.parent / "kvgate"), "--version"])
    assert said.startswith("kvgate ") and said == done([str(python), "-P", "-m", "kvgate", "--version"])


def test_a_policy_of_a_file_is_found_and_keeps_the_contract(python: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICY)
    command = [str(python.parent / "kvgate"), "policy", "test", "--policy-budget-ms", "60000"]
    assert "policy mine\n" in done([*command, str(tmp_path / "mine.py")])


async def test_the_demo_answers_a_request(python: Path, tmp_path: Path) -> None:
    with demo(python, tmp_path) as process:
        await answers(process)
