"""Tests that hang are ended at their limits and named, and hide no others: a run of pytest in a process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.conftest import *
from tests.support import hanging

hanging.GRACE_S = 1.0
limit_of = hanging.limit_of
# On a busy machine both limits may pass at once, and this test is ended by the first one.
hanging.limit_of = lambda item: limit_of(item) + 60 * (item.name == "test_hangs_in_python")
"""
TESTS = """
import ctypes
import threading
import time

import pytest

hangs = pytest.mark.timeout(1)


def beside() -> None:
    threading.Event().wait()


@hangs
def test_hangs_in_python() -> None:
    threading.Thread(target=beside, daemon=True).start()
    threading.Event().wait()


@hangs
def test_hangs_in_c() -> None:
    threading.Thread(target=beside, daemon=True).start()
    mutex = ctypes.create_string_buffer(64)
    for _ in "12":
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


@hangs
def test_swallows_its_failure() -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


@pytest.mark.parametrize("number", range(20))
def test_others(number: int) -> None:
    pass
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="locks a mutex of glibc"),
]


def test_a_hanging_test_is_ended_and_named_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)]
    environment = os.environ | {"COLUMNS": "1000", "TEST_PATIENCE": "1"}  # whole lines, and limits as given
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience(100)
    )
    output = done.stdout + done.stderr
    assert re.search(r"\b3 failed, 20 passed", output), output
    assert re.search(r"FAILED \S+::test_hangs_in_python - Failed: Timeout", output), output
    for name in ("test_hangs_in_c", "test_swallows_its_failure"):
        assert re.search(rf"worker '\w+' crashed while running '[^']*test_hanging.py::{name}'", output), (
            output
        )
        assert f"in {name}\n" in output, "its stack"
    assert len(re.findall(r"Timeout \(0:00:02\)!", output)) == 2, output
    assert output.count("in beside\n") >= 2, "stacks of other threads"
