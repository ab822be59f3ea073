"""`make test-pythons` finds interpreters of each version, and names the versions without one."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.support import pythons

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.process
def test_an_interpreter_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    (shim := tmp_path / "shim").write_text("#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    found = iter(["", str(shim), "/no/where", sys.executable])
    assert pythons.interpreter(HERE, found) == sys.executable
    assert pythons.interpreter("2.4", iter([sys.executable])) is None


def test_the_latest_patch_of_pyenv_is_found_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("3.12.9", "3.12.11", "3.1.5", "3.120.1"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin/python").touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(pythons.shutil, "which", lambda name: None)
    monkeypatch.setattr(pythons, "output", lambda *command: "")
    versions = [Path(each).parts[-3] for each in pythons.candidates("3.12") if each]
    assert versions == ["3.12.11", "3.12.9"]


@pytest.mark.parametrize(
    ("results", "code"),
    [([True, None], 0), ([True, False], 1), ([None, None], 1)],
)
def test_versions_without_an_interpreter_are_named_and_count_as_neither(
    results: list[bool | None], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([(f"line {i}", each) for i, each in enumerate(results)])
    monkeypatch.setattr(pythons, "result", lambda version, pytest: next(lines))
    assert pythons.main(["3.11", "3.12"], []) == code
    assert capsys.readouterr().out == "\nline 0\nline 1\n"


def test_a_version_without_an_interpreter_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "candidates", lambda version: iter([""]))
    line = "3.14: not tested: no interpreter on PATH, in pyenv or from uv"
    assert pythons.result("3.14", []) == (line, None)


def test_tests_run_in_the_environment_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def run(command: list[str]) -> Any:
        ran.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(pythons, "candidates", lambda version: iter([sys.executable]))
    monkeypatch.setattr(pythons, "environment", lambda version, python: Path("inside"))
    monkeypatch.setattr(pythons, "output", lambda *command: HERE)
    monkeypatch.setattr(pythons.subprocess, "run", run)
    line, has_passed = pythons.result(HERE, ["-q", "tests"])
    assert ran == [["inside", "-m", "pytest", "-q", "tests"]]
    assert (has_passed, line.startswith(f"{HERE}: failed, exit status 3 (")) == (False, True)


def test_the_oldest_version_is_the_one_that_the_package_requires() -> None:
    (versions,) = re.findall(r"^PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert f'requires-python = ">={versions.split()[0]}"' in (ROOT / "pyproject.toml").read_text()
