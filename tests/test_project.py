"""Files that a project of many people has: hooks before a commit, forms of issues, and how people meet."""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli
from tests import ROOT

HOOKS: list[dict[str, Any]] = [
    hook
    for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repo["hooks"]
]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))


def test_hooks_are_the_commands_of_make_lint() -> None:
    """And so have the versions of the lock, which fills the environment of both."""
    recipe = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[0]
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    entries = [hook["entry"] for hook in HOOKS]
    assert entries == [re.sub(r" --check \.$| \.$", "", command) for command in commands]
    assert {hook["language"] for hook in HOOKS} == {"system"}


def test_the_tools_of_the_hooks_are_in_the_lock_and_installed_as_such() -> None:
    lock = (ROOT / "requirements-dev.lock").read_text()
    for tool, package in (("ruff", "ruff"), ("mypy", "mypy"), ("lint-imports", "import-linter")):
        (version,) = re.findall(rf"^{package}==(\S+)", lock, re.M)
        assert any(hook["entry"].split()[0] == f".venv/bin/{tool}" for hook in HOOKS)
        assert importlib.metadata.version(package) == version, f"{tool}: make .venv/.installed-dev"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_github_asks_for(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form.keys() == {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) and len(fields) >= 3
    assert all(field["type"] in ("textarea", "input") for field in fields)
    assert all(field["attributes"].keys() <= {"label", "description", "render"} for field in fields)


def test_a_form_asks_for_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / ".github/ISSUE_TEMPLATE/bug_report.yml").read_text()
    for command in re.findall(r"`kvgate ([^`]+)`", text):
        with pytest.raises(SystemExit) as caught:
            cli.main([*command.split(), "--help"])
        assert caught.value.code == 0, command
        capsys.readouterr()


def test_a_change_is_asked_for_targets_and_folders_that_exist() -> None:
    text = (ROOT / ".github/pull_request_template.md").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)
    assert (ROOT / "changelog.d").is_dir() and "changelog.d/" in text
    assert "## Reports" in (ROOT / "CODE_OF_CONDUCT.md").read_text()
