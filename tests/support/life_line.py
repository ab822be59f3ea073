"""Processes that a test process starts end with it, however it ends.

Fixtures stop what they started, but no fixture runs after SIGKILL, `os._exit` or a crash, nor in a test
process that lost its controller to SIGTERM. So each test process marks its environment, which each process
that it starts inherits, and starts a guard: this file run as a program, in a session of its own, where no
Ctrl-C reaches it. The guard waits for the end of the test process, or of the controller that it works for,
and then kills all processes with the mark.
"""

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "TEST_PROCESS"
"""Variable of a test process and of all that it starts; its value is of this test process alone."""
GRACE_S = 10.0
"""Time that a test process may still take for its fixtures when its controller has ended."""


def install(controller: int | None = None) -> None:
    """Mark this process, and start its guard. `controller` is the process that this one runs tests for."""
    os.environ[MARK] = mark = secrets.token_hex(8)
    command = [sys.executable, "-I", "-S", __file__, mark, str(os.getpid()), str(controller or os.getpid())]
    null = subprocess.DEVNULL
    guard = subprocess.Popen(
        command, env={}, stdin=null, stdout=null, stderr=null, start_new_session=True, cwd="/"
    )
    guard.returncode = 0  # it outlives this process: nothing waits for it


def marked(mark: str) -> list[int]:
    """Processes with this mark that are no zombies."""
    entry = f"{MARK}={mark}".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if entry in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # empty for a zombie
    except OSError:  # it has ended, or is another user's
        return []


def _ended(pid: int, timeout_s: float | None = None) -> bool:
    """Wait for the end of a process that need not be a child."""
    try:
        file = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return bool(select.select([file], [], [], timeout_s)[0])
    finally:
        os.close(file)


def _any_ended(pids: set[int]) -> None:
    """Wait for the end of the first of these processes."""
    files: list[int] = []
    with suppress(OSError):  # one has ended already
        for pid in pids:
            files.append(os.pidfd_open(pid))
        select.select(files, [], [])
    for file in files:
        os.close(file)


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def guard(mark: str, test_process: int, controller: int) -> None:
    """Wait for the end of either process; then end the other, and what it started."""
    _any_ended({test_process, controller})
    if not _ended(test_process, GRACE_S):
        _kill(test_process)
        _ended(test_process, GRACE_S)
    while left := marked(mark):  # again: one may have started another meanwhile
        for pid in left:
            _kill(pid)
        time.sleep(0.05)


if __name__ == "__main__":
    guard(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
