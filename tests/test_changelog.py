"""CHANGELOG.md has the current version, and the files of `changelog.d/` become its next section."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.runtime.build import VERSION
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TYPES = [each["directory"] for each in PROJECT["tool"]["towncrier"]["type"]]
NAME = re.compile(rf"(?:\d+|\+[a-z0-9-]+)\.(?:{'|'.join(TYPES)})\.md")


def test_changes_are_named_and_written_as_their_readme_says() -> None:
    for path in sorted((ROOT / "changelog.d").iterdir()):
        if path.name != "README.md":
            assert NAME.fullmatch(path.name), path.name
            assert re.fullmatch(r"[A-Z`*].*[.)`]\s*", path.read_text(), re.DOTALL), path.name


def test_the_readme_has_each_type_of_change() -> None:
    readme = (ROOT / "changelog.d/README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE) == TYPES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Files that towncrier reads, with a change of each type beside those that there are."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    for number, type_ in enumerate(TYPES, 1):
        (tmp_path / f"changelog.d/{number}.{type_}.md").write_text(f"Sample of {type_}.\n")
    return tmp_path


def towncrier(project: Path, *args: str) -> str:
    command = [sys.executable, "-m", "towncrier", "build", "--version", "99.0.0", *args]
    return subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout


def test_the_draft_has_each_change_under_its_type_and_writes_nothing(project: Path) -> None:
    before = (project / "CHANGELOG.md").read_text()
    draft = towncrier(project, "--draft")
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^###|\Z)", draft, re.MULTILINE | re.DOTALL))
    assert list(sections) == [each["name"] for each in PROJECT["tool"]["towncrier"]["type"]]
    for number, (type_, text) in enumerate(zip(TYPES, sections.values(), strict=True), 1):
        assert f"- Sample of {type_}. (#{number})" in text
    assert (project / "CHANGELOG.md").read_text() == before


def test_a_release_puts_its_section_above_the_one_before_and_removes_the_files(project: Path) -> None:
    before = (project / "CHANGELOG.md").read_text()
    towncrier(project, "--yes", "--date", "2030-01-02")
    after = (project / "CHANGELOG.md").read_text()
    head, _, rest = before.partition("\n## ")
    assert after.startswith(f"{head}\n## 99.0.0 (2030-01-02)\n") and after.endswith(f"\n## {rest}")
    assert [path.name for path in (project / "changelog.d").iterdir()] == ["README.md"]


def test_the_version_is_the_same_everywhere() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    chart = re.search(
        r'^appVersion: "?([^"\s]+)', (ROOT / "deploy/helm/kvgate/Chart.yaml").read_text(), re.MULTILINE
    )
    assert newest and chart
    assert [newest[1], chart[1], PROJECT["project"]["version"]] == [VERSION] * 3
