"""Gateway and simulated workers as processes on loopback, for benchmarks; stopped by their ids."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

GATEWAY = [os.environ.get("GATEWAY_PYTHON", sys.executable), "-P", "-m", "kvgate"]
"""Command that is measured and tested: this environment's gateway, or another's, such as the wheel's.
-P: as it is installed there, not as it lies in the current directory.
"""

LISTENING = re.compile(r"listening on (http://[^\s\"]+), admin on (http://[^\s\"]+)")
SIM_READY = re.compile(r"sim ready: (http://\S+)")
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """Running fleet: base URLs without a trailing slash, and the gateway's process id."""

    gateway_url: str
    admin_url: str
    gateway_pid: int
    worker_urls: tuple[str, ...]


@contextmanager
def simulated_fleet(
    num_workers: int, sim_flags: Sequence[str], gateway_flags: Sequence[str]
) -> Iterator[RunningFleet]:
    """Run workers and a gateway; workers first, so that the gateway finds them at once."""
    with ExitStack() as stack:
        urls = []
        for seed in range(num_workers):
            sim = stack.enter_context(running("sim", "--port", "0", "--seed", str(seed), *sim_flags))
            urls.append(first_match(sim, SIM_READY)[0])
        yield stack.enter_context(gateway_before(urls, gateway_flags))


@contextmanager
def gateway_before(worker_urls: Sequence[str], gateway_flags: Sequence[str]) -> Iterator[RunningFleet]:
    """Run one more gateway in front of running workers."""
    workers = [flag for url in worker_urls for flag in ("--worker", url)]
    with running("serve", "--port", "0", "--admin-port", "0", *workers, *gateway_flags) as gateway:
        gateway_url, admin_url = first_match(gateway, LISTENING)
        yield RunningFleet(gateway_url, admin_url, gateway.pid, tuple(worker_urls))


def rss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*GATEWAY, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired as late:
            process.kill()
            process.wait()
            raise RuntimeError(f"kvgate {arguments[0]} did not stop within {STOP_S:.0f} s; killed") from late


def _drain(output: IO[str]) -> None:
    with output:
        output.read()


def first_match(process: "subprocess.Popen[str]", pattern: "re.Pattern[str]") -> tuple[str, ...]:
    """Wait for a line of the process's output, then read on and drop the rest, so that it never blocks."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found := pattern.search(line):
            threading.Thread(target=_drain, args=[process.stdout], daemon=True).start()
            return found.groups()
    raise RuntimeError("it ended before it was ready:\n" + "".join(seen))
