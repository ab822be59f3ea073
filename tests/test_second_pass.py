"""Runs of pytest with a second pass, on folders of tests made for it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.second_pass import MAX_FLAKY, MAX_SHOWN, MAX_TRIED, OUTPUTS, reason

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
FAILS_ONCE = """
def is_first(name):
    path = Path(__file__).parent / f"{name}.ran"
    if path.exists():
        return False
    path.touch()
    return True
"""
HEAD = "import os, pytest\nfrom pathlib import Path\n" + FAILS_ONCE


def run(folder: Path, source: str, *flags: str) -> tuple[int, str]:
    """Exit code and output of pytest with a second pass on a folder with these tests."""
    (folder / "test_it.py").write_text(HEAD + source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.second_pass", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # starts in half the time
    done = subprocess.run(
        [*command, *flags, str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(120),
    )
    return done.returncode, done.stdout.strip()


def test_tests_that_pass_alone_are_flaky(tmp_path: Path) -> None:
    source = """
def test_good(): pass
def test_flaky(): assert not is_first("flaky"), "the first time"
@pytest.fixture
def shaky(): assert not is_first("shaky")
def test_setup(shaky): pass
"""
    code, output = run(tmp_path, source)
    assert code == 0, output
    assert re.search(r"1 passed, 2 flaky in", output), output
    assert (
        "FLAKY test_it.py::test_flaky: .cache/flaky/" in output and "AssertionError: the first time" in output
    )
    texts = [path.read_text() for path in (tmp_path / OUTPUTS).iterdir()]
    assert len(texts) == 2
    (text,) = [text for text in texts if text.startswith("test_it.py::test_flaky\n")]
    assert "the first time" in text
    assert "1 passed" in text


def test_a_worker_process_that_dies_hides_no_test_and_a_test_that_fails_again_fails_the_run(
    tmp_path: Path,
) -> None:
    source = """
def test_dies():
    if is_first("dies"): os._exit(3)
@pytest.mark.parametrize("number", range(10))
def test_other(number): pass
def test_bad(): assert 1 == 2
"""
    code, output = run(tmp_path, source, "-p", "xdist", "-n", "2", "--dist", "worksteal")
    assert code == 1, output
    assert re.search(r"1 failed, 10 passed, 1 flaky in", output), output
    assert re.search(r"^FAILED .*::test_bad", output, re.M)
    assert not re.search(r"^FAILED .*::test_dies", output, re.M)
    (text,) = [path.read_text() for path in (tmp_path / OUTPUTS).iterdir()]
    assert "crashed while running" in text


def test_too_many_flaky_tests_fail_the_run(tmp_path: Path) -> None:
    source = f"""
@pytest.mark.parametrize("number", range({MAX_FLAKY + 1}))
def test_flaky(number): assert not is_first(number)
"""
    code, output = run(tmp_path, source)
    assert code == 1
    assert f"{MAX_FLAKY + 1} tests are flaky, more than {MAX_FLAKY}" in output


def test_a_broken_tree_has_no_second_pass(tmp_path: Path) -> None:
    source = f"""
@pytest.mark.parametrize("number", range({MAX_TRIED + 1}))
def test_bad(number): assert not is_first(number)
"""
    code, output = run(tmp_path, source)
    assert code == 1
    assert f"no second pass: {MAX_TRIED + 1} tests failed" in output
    assert "second pass: test_it.py" not in output


def test_a_failure_is_shown_with_the_errors_before_it() -> None:
    last = "E   the last\n" * (MAX_SHOWN // 10)
    shown = reason(f"E   the first\nIn its handling:\n{last}").splitlines()
    assert shown[0] == "E   the first"
    assert "In its handling:" not in shown
