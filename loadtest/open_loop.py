"""Small requests at a steady rate, in a process of its own:
`python -m loadtest.open_loop URL PER_S PATH [BODY]`.

    due      |    |    |    |    |    |
    answered  |    |             ||||  |        each is late by its end less the time that it was due

A request waits for the one before it, but is due all the same: a stall of 300 ms makes thirty late of a
hundred per second, and not one. The key of the environment's KEY is sent. Once its input ends the delays are
printed, as one JSON list of milliseconds. `late_ms` compares those beside an attack with quiet ones.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from loadtest.extent import IS_SMOKE

CHAT = "/v1/chat/completions"
TIMEOUT_S = 60.0
HEALTH_PER_S, CHATS_PER_S = 100.0, 20.0
PHASE_S = 0.3 if IS_SMOKE else 2.0
ROUNDS = 1 if IS_SMOKE else 3
MAX_LATE_MS = 20.0
"""Goal of `late_ms` for each attack."""


class OpenLoop:
    """Processes that send to a gateway; `delays_ms` are there once they have ended."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        self.delays_ms: list[float] = []
        self._processes = [
            _started(url, key, HEALTH_PER_S, "/health"),
            _started(url, key, CHATS_PER_S, CHAT, json.dumps(chat)),
        ]
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun

    def end(self) -> None:
        printed = [process.communicate()[0] for process in self._processes]
        if any([process.returncode for process in self._processes]):
            raise RuntimeError("a small request failed")
        self.delays_ms = [delay for each in printed for delay in json.loads(each)]


@contextmanager
def open_loop(url: str, model: str, key: str = "") -> Iterator[OpenLoop]:
    """Send 100 requests to /health and 20 small chats per second until the end."""
    loop = OpenLoop(url, model, key)
    try:
        yield loop
    finally:
        loop.end()


def late_ms(
    url: str, model: str, attack: Callable[[], object], key: str = "", *, is_once: bool = False
) -> float:
    """Return how much later small requests to a model are beside an attack than in a quiet time before it,
    at the 99th percentile, in ms. The attack is repeated for a phase, unless it `is_once`."""
    with open_loop(url, model, key) as quiet:
        time.sleep(PHASE_S)
    with open_loop(url, model, key) as others:
        end = time.monotonic() + PHASE_S
        attack()
        while not is_once and time.monotonic() < end:
            attack()
    return max(0.0, p99(others.delays_ms) - p99(quiet.delays_ms))


def rounds_of(measure: Callable[[], float]) -> list[float]:
    """Return delays of some rounds; one within the goal ends them, since neighbours make others longer."""
    lates = [measure()]
    while len(lates) < ROUNDS and lates[-1] > MAX_LATE_MS:
        lates.append(measure())
    return lates


def p99(delays_ms: Sequence[float]) -> float:
    return statistics.quantiles(delays_ms, n=100, method="inclusive")[-1]


def _started(url: str, key: str, per_s: float, *rest: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "loadtest.open_loop", url, str(per_s), *rest]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"KEY": key}
    )


def main(url: str, per_s: float, path: str, body: str = "") -> None:
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("KEY"):
        headers["Authorization"] = f"Bearer {key}"
    delays_ms = list[float]()
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)) as link:
        _send(link, path, body, headers)
        print("begun", flush=True)
        began = time.perf_counter()
        while not is_over.is_set():
            due = began + len(delays_ms) / per_s
            time.sleep(max(0.0, due - time.perf_counter()))
            _send(link, path, body, headers)
            delays_ms.append((time.perf_counter() - due) * 1e3)
    print(json.dumps(delays_ms))


def _send(link: http.client.HTTPConnection, path: str, body: str, headers: dict[str, str]) -> None:
    link.request("POST" if body else "GET", path, body or None, headers)
    answer = link.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
