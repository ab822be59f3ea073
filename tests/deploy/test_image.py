"""The image: its context from a working tree that was worked in, and the steps that need no container."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import translate
from pathlib import Path, PurePosixPath

import pytest

from tests import ROOT
from tests.support.patience import patience

CONTAINERFILE = (ROOT / "deploy/Containerfile").read_text()
LEFT_BEHIND = (
    ".venv/bin/python",
    ".venv/.installed",
    ".venv/.installed-dev",
    ".venv/lib/python3.11/site-packages/kvgate.pth",
    ".venv-vllm/big.so",
    ".cache/helm/helm",
    ".git/config",
    ".env",
    "keys.toml",
    "today.jsonl",
    "build/lib/gateway/cli.py",
    "dist/.built",
    "dist/kvgate-0.0.0-py3-none-any.whl",
    "kvgate.egg-info/PKG-INFO",
    "gateway/__pycache__/cli.cpython-311.pyc",
    "gateway/core/value.cpython-311-x86_64-linux-gnu.so",
    "engines/sim/__pycache__/cli.cpython-311.pyc",
    "loadtest/results/a.json",
)
"""Files that `make run`, tests and people leave in a working tree, and that no image may have."""


def rules() -> Iterator[tuple[bool, "re.Pattern[str]"]]:
    """Lines of .dockerignore: True for one that brings files back, and the paths that it is about."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            anywhere = pattern.removeprefix("**/")
            prefix = "(?:.*/)?" if anywhere != pattern else ""
            one = translate(anywhere).replace(".*", "[^/]*").removesuffix(r"\Z").removesuffix(r"\z")
            yield line.startswith("!"), re.compile(rf"{prefix}{one}(?:/.*)?\Z", re.DOTALL)


def is_in_context(path: PurePosixPath) -> bool:
    """Apply the rules as builders do: the last line that matches a file or a folder above it decides."""
    is_in = True
    for brings_back, pattern in rules():
        if pattern.match(path.as_posix()):
            is_in = brings_back
    return is_in


def sources() -> set[str]:
    """Files of the packages, without what was compiled from them."""
    paths = [
        path for top in ("kvgate", "gateway", "engines") for path in (ROOT / top).rglob("*") if path.is_file()
    ]
    return {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc")
    }


TOP = {"LICENSE", "Makefile", "README.md", "pyproject.toml", "requirements.lock", "requirements-dev.lock"}
TOP |= {"setup.py", "deploy/image/root.sh", "requirements-image.lock"}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Context that a builder gets of a working tree after a `make run`."""
    tree, sent = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("context")
    for name in sorted(sources() | TOP | {"CHANGELOG.md", "docs/index.md", "deploy/Containerfile"}):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for name in LEFT_BEHIND:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left behind")
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree)
        if path.is_file() and is_in_context(PurePosixPath(name)):
            (sent / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, sent / name)
    return sent


def test_the_context_is_what_the_wheel_is_made_of(context: Path) -> None:
    sent = {path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()}
    assert sent == sources() | TOP


def test_each_file_that_a_step_names_is_in_the_context(context: Path) -> None:
    copied = re.findall(r"^COPY (?!--)(\S+)", CONTAINERFILE, re.MULTILINE)
    assert {".", "requirements-image.lock"} < set(copied) and "RUN make wheel" in CONTAINERFILE
    for name in copied:
        assert (context / name).exists()
    made = (context / "Makefile").read_text()
    for target in ("$(VENV)/.installed:", "$(VENV)/.installed-dev:", "dist/.built:"):
        line = re.search(rf"^{re.escape(target)}(.*)$", made, re.MULTILINE)
        assert line is not None
        for name in re.findall(r"(?<!\S)[\w.-]+\.(?:lock|toml)", line[1]):
            assert (context / name).is_file()


def test_the_base_is_one_release_of_debian() -> None:
    """All stages start from it or from nothing, so that the Python that builds is the one that runs."""
    (base,) = re.findall(r"^ARG DEBIAN=(\S+)$", CONTAINERFILE, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/debian:[a-z]+-\d{8}-slim(@sha256:[0-9a-f]{64})?", base)
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", CONTAINERFILE, re.MULTILINE)
    assert {start for start, _ in stages} == {"${DEBIAN}", "base", "scratch"} and stages[-1] == (
        "scratch",
        "",
    )


def test_the_image_has_the_locked_packages_and_those_of_its_extras() -> None:
    """They are of one resolution: what the tests run with is what the image runs with."""
    plain, image = (
        set(re.findall(r"^(\S+==\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-image.lock")
    )
    assert plain < image and {each.partition("==")[0] for each in image} >= {
        "opentelemetry-sdk",
        "oss-harmony",
    }
    tested = (ROOT / "requirements-dev.lock").read_text()
    assert [each for each in sorted(image) if f"\n{each} " not in f"\n{tested}"] == []


def test_the_wheel_is_built_from_nothing(context: Path) -> None:
    """No stamp of the working tree makes `make` believe that an environment or a wheel is there."""
    done = subprocess.run(
        ["make", "-n", "wheel"], cwd=context, capture_output=True, text=True, timeout=patience(60), check=True
    )
    for step in ("-m venv .venv", "requirements.lock", "requirements-dev.lock", "pip wheel", "-w dist"):
        assert step in done.stdout, done.stdout


@pytest.mark.process
def test_the_wheel_of_the_context_has_all_files_of_the_packages(context: Path, tmp_path: Path) -> None:
    """The step is that of `make wheel`, without the compiler."""
    pip, to = [sys.executable, "-m", "pip"], str(tmp_path)
    command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", to, "."]
    environment = {**os.environ, "GATEWAY_PURE": "1"}
    done = subprocess.run(
        command, cwd=context, env=environment, capture_output=True, text=True, timeout=patience(300)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("kvgate-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name if name.startswith("kvgate/") else f"kvgate/{name}" for name in sources()} - names == set()
