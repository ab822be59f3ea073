"""Workflows of GitHub, and forms beside them: they fit their schemas, and take no right without a need.

Nothing here runs them. What they call is tested where it is: `make test-wheel` and `make test-image`.
"""

import importlib.resources
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests import ROOT
from tests.support.patience import patience

GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}
RELEASE: dict[str, Any] = yaml.safe_load(WORKFLOWS["release.yml"].read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCHEMAS = {
    ".github/workflows/*.yml": "github-workflows",
    ".github/dependabot.yml": "dependabot",
    ".github/ISSUE_TEMPLATE/*_*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "examples/compose/compose.yaml": "compose-spec",
}
CHECKED = [(path, SCHEMAS[pattern]) for pattern in SCHEMAS for path in sorted(ROOT.glob(pattern))]
RIGHTS = {
    "ci": {"contents: read"},
    "wheels": {"contents: read"},
    "sdist": {"contents: read"},
    "image": {"contents: read", "packages: write"},
    "chart": {"contents: read"},
    "registry": {"packages: write", "id-token: write", "attestations: write"},
    "pypi": {"id-token: write", "attestations: write"},
    "github": {"contents: write"},
}
"""Rights of each job: what publishes has no checkout with code of the project, except the release itself."""


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, job)
        for path in WORKFLOWS.values()
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    ]


def steps() -> list[dict[str, Any]]:
    return [step for _, job in jobs() for step in job["steps"]]


@pytest.mark.parametrize(
    ("path", "schema"), CHECKED, ids=[str(each.relative_to(ROOT)) for each, _ in CHECKED]
)
def test_a_file_fits_its_schema(path: Path, schema: str) -> None:
    folder = importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor"
    rules = json.loads((folder / f"{schema}.json").read_text())
    # YAML 1.1 reads the key `on` as True
    read = {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_text()).items()}
    judge = jsonschema.validators.validator_for(rules)(rules)
    assert [f"{error.json_path}: {error.message}" for error in judge.iter_errors(read)] == []
    assert list(judge.iter_errors({"on": 1, "jobs": 1, "services": 1, "body": 1, "blank_issues_enabled": 1}))


@pytest.mark.process
def test_a_judge_of_workflows_finds_nothing() -> None:
    zizmor = Path(sys.executable).parent / "zizmor"
    command = [str(zizmor), "--offline", "--no-progress", "--no-config", str(GITHUB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0, done.stdout
    assert all(f"completed {GITHUB / 'workflows' / name}" in done.stderr for name in WORKFLOWS)


def test_an_action_is_pinned_by_its_commit_and_names_its_version() -> None:
    used = [line for path in WORKFLOWS.values() for line in path.read_text().splitlines() if "uses:" in line]
    pinned = [re.search(r"uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$", line) for line in used]
    assert all(pinned) and len(used) > 10, used
    versions = {found[1]: found.groups() for found in pinned if found}
    assert {found.groups() for found in pinned if found} == set(versions.values()), "one version of each"


def test_a_job_has_the_rights_that_it_needs_and_a_limit() -> None:
    assert all(yaml.safe_load(path.read_text())["permissions"] == {} for path in WORKFLOWS.values())
    found = {name: {f"{right}: {how}" for right, how in job["permissions"].items()} for name, job in jobs()}
    assert found == RIGHTS
    assert all(job["timeout-minutes"] <= 120 for _, job in jobs())


def test_no_secret_is_kept() -> None:
    """The token of the run and trusted publishing are enough."""
    for path in WORKFLOWS.values():
        assert "secrets." not in path.read_text(), path
    checkouts = [step for step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_nothing_is_published_before_all_is_built_and_only_for_a_tag() -> None:
    built = {"wheels", "sdist", "image", "chart"}
    publishing = {name: job for name, job in RELEASE["jobs"].items() if name in ("registry", "pypi")}
    assert all(set(job["needs"]) == built for job in publishing.values())
    assert all(job["if"] == "github.event_name == 'push'" for job in publishing.values())
    assert set(RELEASE["jobs"]["github"]["needs"]) == {"registry", "pypi"} and RELEASE[True]["push"] == {
        "tags": ["v*"]
    }


def test_wheels_are_built_for_each_python_and_processor_that_is_promised() -> None:
    selected = PROJECT["tool"]["cibuildwheel"]["build"]
    minors = re.fullmatch(r"cp3\{([\d,]+)\}-manylinux_\*", selected)
    assert minors is not None
    prefix = "Programming Language :: Python :: 3."
    promised = [each for each in PROJECT["project"]["classifiers"] if each.startswith(prefix)]
    assert [f"{prefix}{minor}" for minor in minors[1].split(",")] == promised
    tested = re.search(r"^PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tested is not None and tested[1].split() == [f"3.{minor}" for minor in minors[1].split(",")]
    for job in ("wheels", "image"):
        of = {each["arch"]: each["runner"] for each in RELEASE["jobs"][job]["strategy"]["matrix"]["include"]}
        assert of == {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}, job


@pytest.mark.process
def test_commands_are_those_of_a_shell_and_of_the_repository() -> None:
    scripts = [step["run"] for step in steps() if "run" in step]
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    named = {path for script in scripts for path in re.findall(r"(?:deploy|\.ci)/[\w./-]+", script)}
    given = {step["with"]["file"] for step in steps() if "file" in step.get("with", {})}
    command = PROJECT["tool"]["cibuildwheel"]["test-command"]
    tests = set(re.findall(r"\{project\}/(\S+)", command))
    assert {"deploy/image/sbom.py", ".ci/run"} <= named and given == {"deploy/Containerfile"} and tests
    assert [path for path in named | given | tests if not (ROOT / path).exists()] == []


def test_names_in_the_workflow_are_those_of_the_files_it_changes() -> None:
    """Commands of the workflow find what they look for: the version, the chart's repository."""
    assert len(re.findall(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)) == 1
    values = (ROOT / "deploy/helm/kvgate/values.yaml").read_text()
    assert len(re.findall(r"^  repository: kvgate$", values, re.MULTILINE)) == 1
    both = WORKFLOWS["release.yml"].read_text()
    for argument in re.findall(r"^            (\w+)=\$\{\{", both, re.MULTILINE):
        assert f'{argument}=""' in (ROOT / "deploy/Containerfile").read_text()
