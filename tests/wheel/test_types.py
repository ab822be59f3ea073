"""Types of the installed `kvgate`, as `mypy --strict` reads them from a plugin."""

import re
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.support.patience import patience

TESTED = """

def test_soonest_keeps_the_contract() -> None:
    kvgate.testing.verify(Soonest)
"""


def typed_policy() -> str:
    """The policy of the guide that has types, and a test of it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/policies.md").read_text(), re.DOTALL)
    (policy,) = (block for block in blocks if "from kvgate import" in block)
    return f"import kvgate.testing\n{policy}{TESTED}"


def checked(source: str, python: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "plugin.py").write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "plugin.py"]
    command += ["--cache-dir", str(python.parents[1] / "mypy_cache")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patience(240))


def test_the_policy_of_the_guide_passes(python: Path, tmp_path: Path) -> None:
    result = checked(typed_policy(), python, tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout


def test_the_examples_pass(python: Path, tmp_path: Path) -> None:
    policies = sorted((ROOT / "examples/policy").glob("[!t]*.py"))
    sources = [path.read_text() for path in (*policies, ROOT / "examples/library/route.py")]
    assert len(sources) > 1 and all("kvgate" in source for source in sources)
    for source in sources:
        result = checked(source, python, tmp_path)
        assert (result.returncode, result.stderr) == (0, ""), result.stdout


def test_wrong_types_and_unknown_names_are_found(python: Path, tmp_path: Path) -> None:
    wrong = typed_policy().replace('"fewest tokens ahead"', "7").replace(".booked_tokens", ".booked_tokns")
    result = checked(wrong.replace("pick_lowest", "pick_highest"), python, tmp_path)
    assert result.returncode == 1
    for error in (
        'Argument 2 to "Choice" has incompatible type "int"; expected "str"',
        '"Candidate" has no attribute "booked_tokns"',
        'Module "kvgate" has no attribute "pick_highest"',
    ):
        assert error in result.stdout
