"""Program of `make test-pythons`: the fast tests in each version of Python that kvgate is for.

Arguments: versions, `--`, arguments of pytest. An interpreter is looked for on PATH, in pyenv, and at uv,
which downloads one; a version without one is named, and not tested. Each gets an environment with the locked
packages in `.cache/pythons/`. Exit status 1 if a test failed, or if no version was tested.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

FOLDER = Path(".cache/pythons")
LOCK = Path("requirements-dev.lock")
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def output(*command: str) -> str:
    """Return what a command prints, or nothing where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def candidates(version: str) -> Iterator[str]:
    """Yield interpreters that may be of a version, the nearest first."""
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    patches = pyenv.glob(f"versions/{version}.*/bin/python")
    yield from map(str, sorted(patches, key=_patch, reverse=True))
    output("uv", "python", "install", "--quiet", version)
    yield output("uv", "python", "find", "--no-project", version)


def _patch(python: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in python.parts[-3].split(".") if part.isdigit())


def interpreter(version: str, found: Iterator[str]) -> str | None:
    """Return the first interpreter that runs and is of the version; a shim of pyenv may not run."""
    return next((each for each in found if each and output(each, "-c", VERSION) == version), None)


def environment(version: str, python: str) -> Path:
    """Return the interpreter of an environment with the locked packages. Raises CalledProcessError."""
    folder = FOLDER / version
    inside, mark = folder / "bin/python", folder / ".installed"
    wanted = f"{python} {sha256(LOCK.read_bytes()).hexdigest()}"
    if not (mark.is_file() and mark.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pip = [str(inside), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
        mark.write_text(wanted)
    return inside


def result(version: str, pytest: Sequence[str]) -> tuple[str, bool | None]:
    """Test a version. Returns a line about it, and if its tests passed; None if there is no interpreter."""
    python = interpreter(version, candidates(version))
    if python is None:
        return f"{version}: not tested: no interpreter on PATH, in pyenv or from uv", None
    try:
        inside = environment(version, python)
    except subprocess.CalledProcessError as exc:
        return f"{version}: the locked packages cannot be installed: {exc}", False
    code = subprocess.run([str(inside), "-m", "pytest", *pytest]).returncode
    full = output(python, "--version")
    return (
        f"{version}: {'passed' if code == 0 else f'failed, exit status {code}'} ({full}, {python})",
        code == 0,
    )


def main(versions: Sequence[str], pytest: Sequence[str]) -> int:
    results = [result(version, pytest) for version in versions]
    print("", *(line for line, _ in results), sep="\n", flush=True)
    passed = [has_passed for _, has_passed in results if has_passed is not None]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main(sys.argv[1:at], sys.argv[at + 1 :]))
