"""Test processes that are interrupted, terminated or killed leave no process behind: runs of pytest."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.life_line import MARK, marked
from tests.support.patience import patience, wait_until

ROOT = Path(__file__).parents[1]
DEADLINE_S = 60.0
TESTS = f"""
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.redis.embedded import EmbeddedServer
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.process
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize("number", [0, 1])
def test_it_waits(number: int) -> None:
    server = EmbeddedServer()
    server.start()
    with GatewayProcess("--processes", "2"), subprocess.Popen(SLEEP, start_new_session=True):
        report = Path(__file__).with_name(f"unfinished{{number}}")
        report.write_text(f"{{os.getpid()}} {{os.environ['{MARK}']}}")
        report.rename(report.with_name(f"running{{number}}"))
        threading.Event().wait()
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the guard reads /proc"),
]


@dataclass(frozen=True, slots=True)
class TestProcess:
    """Process that runs a waiting test, and the mark of all that it has started."""

    __test__ = False

    pid: int
    mark: str

    def leaves_nothing(self) -> bool:
        return not marked(self.mark)


def heed_interrupts() -> None:
    """End a new process by SIGINT as a terminal's does, though a run in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", list[TestProcess]]]:
    """Two test processes in the middle of a test, with servers, in a session of their own."""
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_waiting.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "load", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(folder)]
    log = folder / "log"
    with log.open("wb") as file:
        controller = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True, preexec_fn=heed_interrupts
        )
    try:
        reports = [folder / "running0", folder / "running1"]
        wait_until(
            lambda: all(map(Path.exists, reports)) or controller.poll() is not None,
            "both tests wait",
            DEADLINE_S,
        )
        assert controller.poll() is None, log.read_text()
        texts = [report.read_text().split() for report in reports]
        yield controller, [TestProcess(int(pid), mark) for pid, mark in texts]
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(controller.pid, signal.SIGKILL)
        controller.wait()


def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole foreground process group."""
    with running(tmp_path) as (controller, test_processes):
        assert all(len(marked(each.mark)) >= 6 for each in test_processes), "servers of several kinds"
        os.killpg(controller.pid, signal.SIGINT)
        assert controller.wait(patience(DEADLINE_S)) == pytest.ExitCode.INTERRUPTED
        wait_until(
            lambda: all(each.leaves_nothing() for each in test_processes),
            "all processes have ended",
            DEADLINE_S,
        )
        log = (tmp_path / "log").read_text()
    assert "KeyboardInterrupt" in log and "preloaded.py" not in log, log


def test_a_terminated_run_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path) as (controller, test_processes):
        controller.terminate()
        controller.wait(patience(DEADLINE_S))
        wait_until(
            lambda: all(each.leaves_nothing() for each in test_processes),
            "all processes have ended",
            DEADLINE_S,
        )


def test_a_killed_test_process_leaves_none_and_others_go_on(tmp_path: Path) -> None:
    with running(tmp_path) as (controller, (killed, other)):
        os.kill(killed.pid, signal.SIGKILL)
        wait_until(killed.leaves_nothing, "its processes have ended", DEADLINE_S)
        assert not other.leaves_nothing() and controller.poll() is None
    wait_until(other.leaves_nothing, "all processes have ended", DEADLINE_S)
