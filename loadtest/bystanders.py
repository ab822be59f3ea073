"""Clients beside an attack, in a process of their own, and how late their answers are.

    attack ──────────────────────────► gateway ──► workers
    bystanders: 20 chats/s, 100 GET /health a second ──┘

Requests begin by the clock, not when the one before has ended: an answer is late by its time since it was
due, so one long stall counts for all requests that were due meanwhile. `python -m loadtest.bystanders URL
MODEL` prints a line of two numbers for each: when it was due (monotonic, s), and the time it took (ms).
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

CHATS_PER_S, PROBES_PER_S = 20, 100
ANSWER_S = 60.0
PERCENTILE = 0.99


class Bystanders:
    """Running clients, with the answers that they have had."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._times: list[tuple[float, float]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def p99_ms(self, began_s: float, ended_s: float) -> float:
        """Return the 99th percentile of the times of requests that were due then, all of them answered.
        Raises RuntimeError if there are none, or they failed."""
        end = time.monotonic() + ANSWER_S
        while not self._times or self._times[-1][0] < ended_s:
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the requests beside the attack failed")
            time.sleep(0.01)
        taken = sorted(ms for due_s, ms in self._times if began_s <= due_s <= ended_s)
        if not taken:
            raise RuntimeError("no request was due beside the attack")
        return taken[min(len(taken) - 1, int(PERCENTILE * len(taken)))]

    def join(self) -> None:
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            due_s, took_ms = line.split()
            self._times.append((float(due_s), float(took_ms)))


@contextmanager
def bystanders(url: str, model: str) -> Iterator[Bystanders]:
    command = [sys.executable, "-m", "loadtest.bystanders", url, model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        clients = Bystanders(process)
        try:
            yield clients
        finally:
            process.terminate()
            clients.join()


def ask_by_the_clock(url: str, per_s: float, method: str, path: str, body: bytes | None) -> None:
    """Send requests on one connection, for ever. Ends the process's output where one fails."""
    link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
    due_s = time.monotonic()
    while True:
        due_s += 1 / per_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        link.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = link.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} got {answer.status}")
        sys.stdout.write(f"{due_s} {(time.monotonic() - due_s) * 1e3}\n")
        sys.stdout.flush()


def main(url: str, model: str) -> int:
    """Ask until the process is stopped. Returns 1 as soon as a request fails."""
    chat = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    kinds = (
        (CHATS_PER_S, "POST", "/v1/chat/completions", json.dumps(chat).encode()),
        (PROBES_PER_S, "GET", "/health", None),
    )
    has_failed = threading.Event()

    def run(*kind: float | str | bytes | None) -> None:
        try:
            ask_by_the_clock(url, *kind)  # type: ignore[arg-type]
        finally:
            has_failed.set()

    for kind in kinds:
        threading.Thread(target=run, args=kind, daemon=True).start()
    has_failed.wait()
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
