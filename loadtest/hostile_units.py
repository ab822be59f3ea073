"""Figures `hostile.pipeline_*`, `hostile.answer_late_ms`: tiny units without end, from a client and from a
worker, and what they cost others.

    pipelining client ──4 MB of requests──►            ┌──► good worker
    others ────────────chats, /health─────►  gateway ──┤
    reader     ────────one completion─────►            └──► worker that answers with 31 MB of tiny events

Late is the p99 of others' requests beside the attack, less that of a quiet time before it (`open_loop.py`).
Memory is the growth of the process (VmHWM) beside a client that sends 40 MB of requests and reads no answer.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

from loadtest.extent import IS_SMOKE
from loadtest.fleet import SIM_READY, RunningFleet, first_match, gateway_before, running
from loadtest.hostile_body import memory_mb, post, reset_peak
from loadtest.open_loop import MAX_LATE_MS, ROUNDS, late_ms, rounds_of
from loadtest.outpouring import MODEL, UNITS
from loadtest.report import Figure, best_of

GOOD = "good"
WORKER = ("--prefill-tokens-per-s", "1000000", "--decode-tokens-per-s", "10000", "--mean-output-tokens", "1")
PIPELINED_BYTES = 64 << 10 if IS_SMOKE else 4 << 20
UNREAD_BYTES = 1 << 20 if IS_SMOKE else 40 << 20
ANSWER_BYTES = 256 << 10 if IS_SMOKE else 31 << 20
MAX_MB = 20.0
UNREAD_S = 1.0
REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
READ_BYTES = 1 << 20
TIMEOUT_S = 120.0


@contextmanager
def pouring_worker() -> Iterator[str]:
    """Run the worker of `outpouring.py`; yields its URL."""
    command = [sys.executable, "-m", "loadtest.outpouring"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def fleet() -> Iterator[RunningFleet]:
    with ExitStack() as stack:
        sim = stack.enter_context(running("sim", "--port", "0", "--model", GOOD, *WORKER))
        urls = [first_match(sim, SIM_READY)[0], stack.enter_context(pouring_worker())]
        gateway = stack.enter_context(gateway_before(urls, ()))
        for model in (GOOD, MODEL):
            _wait(lambda model=model: _completion(gateway, model, "events", 1) == 200, f"{model} answers")
        yield gateway


def pipeline(fleet: RunningFleet) -> None:
    """Send requests in one piece, and read all answers."""
    place = urlsplit(fleet.gateway_url)
    num = PIPELINED_BYTES // len(REQUEST)
    last = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with socket.create_connection((place.hostname, place.port), timeout=TIMEOUT_S) as link:
        link.setblocking(False)
        left = memoryview(REQUEST * (num - 1) + last)
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            with suppress(BlockingIOError):
                left = left[link.send(left) :] if left else left
            try:
                if not link.recv(READ_BYTES):
                    return
            except BlockingIOError:
                time.sleep(0.001)
    raise RuntimeError("the pipelined requests were not all answered")


def unread_mb(fleet: RunningFleet) -> float:
    """Return the growth while a client sends requests and reads nothing."""
    place, pid = urlsplit(fleet.gateway_url), fleet.gateway_pid
    reset_peak(pid)
    start_mb = memory_mb(pid, "VmRSS")
    with socket.create_connection((place.hostname, place.port), timeout=TIMEOUT_S) as link:
        link.setblocking(False)
        left, end = memoryview(REQUEST * (UNREAD_BYTES // len(REQUEST))), time.monotonic() + UNREAD_S
        while left and time.monotonic() < end:
            try:
                left = left[link.send(left) :]
            except BlockingIOError:
                time.sleep(0.001)
        return max(0.0, memory_mb(pid, "VmHWM") - start_mb)


def measure() -> list[Figure]:
    """Measure pipelined requests and, for each unit of an answer, how late others are."""
    goals = (None, None) if IS_SMOKE else (MAX_LATE_MS, MAX_MB)
    with fleet() as gateway:
        url = gateway.gateway_url
        pipelined = rounds_of(lambda: late_ms(url, GOOD, lambda: pipeline(gateway)))
        answers = {}
        for unit in UNITS:
            answers[unit] = min(rounds_of(lambda: late_ms(url, GOOD, lambda: _read_answer(gateway, unit))))  # noqa: B023
            print(f"answer of {unit}: others {answers[unit]:.1f} ms late", flush=True)
        grown = [unread_mb(gateway) for _ in range(ROUNDS)]
    lates = sorted(round(ms, 1) for ms in answers.values())
    return [
        best_of("hostile.pipeline_late_ms", "ms", goals[0], pipelined),
        Figure("hostile.pipeline_mb", round(max(grown), 1), "MB", goals[1], grown),
        Figure("hostile.answer_late_ms", lates[-1], "ms", goals[0], lates),
    ]


def _read_answer(fleet: RunningFleet, unit: str) -> None:
    if (status := _completion(fleet, MODEL, unit, ANSWER_BYTES)) != 200:
        raise RuntimeError(f"the completion got {status}")


def _completion(fleet: RunningFleet, model: str, prompt: str, max_tokens: int) -> int:
    asked = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": model == MODEL}
    return post(fleet.gateway_url, "/v1/completions", json.dumps(asked).encode())[0]


def _wait(is_true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_true():
        if time.monotonic() > end:
            raise RuntimeError(f"it never became true that {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
