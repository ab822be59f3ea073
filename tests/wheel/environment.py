"""Builds of the wheel, and environments in which nothing leads to the checkout."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests import ROOT
from tests.support.patience import patience

SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "kvgate", "gateway", "engines")


@contextmanager
def made_once(folder: Path) -> Iterator[Path | None]:
    """The new folder for the first process of a run, None for the others, which wait for it."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            yield None
            return
        folder.mkdir()
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder)
            raise


def copied(folder: Path) -> Path:
    """Copy what a wheel is made of: builds write beside it."""
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def built(sources: Path, into: Path, command: str) -> None:
    """Build as `pip` does, by the build backend: "bdist_wheel" or "sdist"."""
    call = {"bdist_wheel": "build_wheel", "sdist": "build_sdist"}[command]
    code = f"from setuptools import build_meta; build_meta.{call}({str(into)!r})"
    done([sys.executable, "-c", code], cwd=sources, env={**os.environ, "GATEWAY_PURE": "1"})


def environment(folder: Path) -> Path:
    """Make an environment that has the packages of this one, but not this checkout. Returns the folder of its
    own packages."""
    venv.create(folder, symlinks=True)
    (folder / "dependencies").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "kvgate" not in path.name:
            (folder / "dependencies" / path.name).symlink_to(path)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")
    return packages


def pip(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
    return [*command, "--quiet", "--disable-pip-version-check", *arguments]


def done(command: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command that has to succeed. Returns its output."""
    ended = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=patience(240), check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
