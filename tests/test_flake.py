import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import flake
from tests.support.patience import patience, wait_until

ROOT = Path(__file__).parents[1]
OUTPUT = """
=========================== short test summary info ============================
SKIPPED [1] tests/test_a.py:3: no compiler
FAILED tests/test_a.py::test_one[a - b] - AssertionError: assert 1 == 2
FAILED tests/test_a.py::test_two
ERROR tests/test_b.py::test_three - OSError
============ 2 failed, 7 passed, 1 skipped, 1 error in 3.21s (0:00:03) =============
"""


def test_failed_tests_are_read_from_the_summary() -> None:
    found = flake.failures(OUTPUT)
    assert found == {
        "tests/test_a.py::test_one[a - b]",
        "tests/test_a.py::test_two",
        "tests/test_b.py::test_three",
    }
    assert flake.failures("== 3 passed in 1.00s ==") == set()


def test_counts_are_read_from_the_closing_line() -> None:
    assert flake.closing(OUTPUT) == "2 failed, 7 passed, 1 skipped, 1 error in 3.21s (0:00:03)"
    assert flake.closing("5 passed in 0.10s\n") == "5 passed in 0.10s"
    assert flake.closing("Killed") == "no closing line"


@pytest.mark.process
def test_a_stop_ends_the_run_and_the_busy_process(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time\nprint('runs', flush=True)\ntime.sleep(3600)\n")
    program = (
        "import sys; from tests.support import flake; flake.FOLDER = flake.Path(sys.argv[1]); "
        "flake.BUSY = f'mark = {sys.argv[1]!r}\\nwhile True: pass'; sys.exit(flake.main(sys.argv[2:]))"
    )
    waits = [sys.executable, str(tmp_path / "wait.py")]
    runner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "logs"), *waits], cwd=ROOT)
    log = tmp_path / "logs" / "run-1.txt"
    wait_until(lambda: log.exists() and "runs" in log.read_text(), "the run has begun")
    assert len(_naming(tmp_path)) == 3
    runner.terminate()
    runner.wait(patience(60))
    wait_until(lambda: not _naming(tmp_path), "no process is left")


def _naming(path: Path) -> list[str]:
    """Processes with a path in their arguments."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(path) in each.read_bytes():
                found.append(each.parent.name)
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.process
def test_runs_are_counted_in_their_orders(tmp_path: Path) -> None:
    """The first of two tests that share a file fails: which one that is depends on the order."""
    (tmp_path / "test_it.py").write_text(
        "".join(
            f"def test_{i}(tmp_path_factory):\n"
            "    path = tmp_path_factory.getbasetemp() / 'ran'\n"
            "    is_first, _ = not path.exists(), path.touch()\n"
            "    assert not is_first\n"
            for i in range(4)
        )
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    program = (
        "import os, sys; os.environ['RUNS'] = '5'; from tests.support import flake; "
        "flake.FOLDER = flake.Path(sys.argv[1]); sys.exit(flake.main(sys.argv[2:]))"
    )
    pytest_ = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(tmp_path)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", program, str(tmp_path / "logs"), *pytest_]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience(120)
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("1 failed, 3 passed") == 5
    assert "0 of 5 runs without a failure" in done.stdout
    assert len(list((tmp_path / "logs").iterdir())) == 5
