"""Figures `hostile.body60_*`, `hostile.bodies60_*`: the cost of one giant body, of one form and of all,
for the gateway that rejects it and for other clients.

    sender ──60 MiB──►  gateway  ──►  simulated worker (32,768 tokens)
    others ──small───►           ──►  another one

Memory is the peak of the whole process (VmHWM), set back before each body. A request of the others is late by
its time over the median of a quiet second. `python -m loadtest.hostile_body` prints all forms of bodies and
the worst text of each family of tokenizers; `measure` is the one of the goals.
"""

import http.client
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.app import bundled_tokenizer
from loadtest.fleet import SIM_READY, RunningFleet, first_match, gateway_before, running
from loadtest.hostile_texts import FORMS, WORST, tokenizer_of
from loadtest.report import Figure, best_of, publish

NUM_BYTES = 60 << 20
SMOKE_BYTES, SMOKE_FORM_BYTES = 24 << 20, 2 << 20
SMOKE_QUIET_S = 0.1
ROUNDS = 3
MAX_PEAK_MB, MAX_MS, MAX_LATE_MS = 300.0, 500.0, 50.0
QUIET_S = 1.0
PAUSE_S = 0.01
"""Seconds between two requests of the others."""
ANSWER_S = 60.0
GIVEN_BACK_S = 3.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORKER = ("--kv-blocks", "8192", "--prefill-tokens-per-s", "1000000", "--decode-tokens-per-s", "10000")
FLAGS = ("--max-body-bytes", str(64 << 20))
OTHER = "other"
SMALL = json.dumps({"model": OTHER, "prompt": "Hello", "max_tokens": 1}).encode()


@dataclass(frozen=True, slots=True)
class BodyCost:
    """Cost of one body: the response, its time, the process's peak and remaining memory, and the others'
    delay."""

    status: int
    message: str
    took_ms: float
    start_mb: float
    peak_mb: float
    left_mb: float
    late_ms: float


class OtherClient:
    """Client that sends small requests, again and again, on one connection."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._is_over = threading.Event()
        self.times_ms: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "OtherClient":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        link = http.client.HTTPConnection(self._netloc, timeout=ANSWER_S)
        while not self._is_over.wait(PAUSE_S):
            began = time.perf_counter()
            link.request("POST", COMPLETIONS, SMALL, {"Content-Type": "application/json"})
            answer = link.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"a small request got {answer.status}")
            self.times_ms.append((time.perf_counter() - began) * 1e3)
        link.close()


def memory_mb(pid: int, name: str) -> float:
    """Value of a line of the process's status, such as `VmHWM`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/status has no {name}")


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def post(url: str, path: str, body: bytes) -> tuple[int, str]:
    """Status and error message; a response that comes before the body is sent counts too."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=ANSWER_S) as link:
        head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n"
        try:
            link.sendall(
                head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            link.sendall(body)
        except ConnectionError:
            pass
        answer = http.client.HTTPResponse(link)
        answer.begin()
        data = answer.read()
    return answer.status, _message(data)


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return data[:100].decode(errors="replace")


def cost_of(fleet: RunningFleet, path: str, body: bytes) -> BodyCost:
    pid = fleet.gateway_pid
    with OtherClient(fleet.gateway_url) as quiet:
        time.sleep(SMOKE_QUIET_S if is_smoke() else QUIET_S)
    usual_ms = statistics.median(quiet.times_ms)
    reset_peak(pid)
    start_mb = memory_mb(pid, "VmRSS")
    with OtherClient(fleet.gateway_url) as others:
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        status, message = post(fleet.gateway_url, path, body)
        took_ms = (time.perf_counter() - began) * 1e3
    peak_mb = memory_mb(pid, "VmHWM")
    left_mb = _settled_mb(pid, start_mb)
    late_ms = max(others.times_ms, default=usual_ms) - usual_ms
    return BodyCost(status, message, took_ms, start_mb, peak_mb, left_mb, late_ms)


def _settled_mb(pid: int, start_mb: float) -> float:
    end = time.monotonic() + GIVEN_BACK_S
    while (now_mb := memory_mb(pid, "VmRSS")) > start_mb + 8 and time.monotonic() < end:
        time.sleep(0.05)
    return now_mb


@contextmanager
def before_one(tokenizer: Path) -> Iterator[RunningFleet]:
    """Gateway with one worker, after some requests."""
    flags = (*FLAGS, "--tokenizer", str(tokenizer), "--no-tokenizer-probe")
    sim = ("sim", "--port", "0", *WORKER)
    with ExitStack() as stack:
        sims = [stack.enter_context(running(*sim, "--model", model)) for model in ("sim", OTHER)]
        urls = [first_match(each, SIM_READY)[0] for each in sims]
        fleet = stack.enter_context(gateway_before(urls, flags))
        end = time.monotonic() + 30
        while post(fleet.gateway_url, COMPLETIONS, SMALL)[0] != 200:
            if time.monotonic() > end:
                raise RuntimeError("the gateway does not answer")
            time.sleep(0.1)
        yield fleet


def is_smoke() -> bool:
    return os.environ.get("SMOKE", "0") not in ("", "0")


def measure() -> list[Figure]:
    """Figures of a chat of 60 MiB that is one word: the worst memory, and the least time (machines shared);
    and for each form of body, how late other requests are."""
    size, rounds = (SMOKE_BYTES, 1) if is_smoke() else (NUM_BYTES, ROUNDS)
    body = FORMS["chat"][1](size)
    with before_one(bundled_tokenizer()) as fleet:
        costs = [cost_of(fleet, CHAT, body) for _ in range(rounds)]
        forms = {name: _least(fleet, name, SMOKE_FORM_BYTES if is_smoke() else size) for name in FORMS}
    for cost in costs:
        if cost.status != 400 or "maximum context length" not in cost.message:
            raise RuntimeError(f"a body that cannot fit got {cost.status}: {cost.message}")
    peaks = [round(cost.peak_mb, 1) for cost in costs]
    goals = (None, None, None) if is_smoke() else (MAX_PEAK_MB, MAX_MS, MAX_LATE_MS)
    return [
        Figure("hostile.body60_peak_mb", max(peaks), "MB", goals[0], peaks),
        best_of("hostile.body60_ms", "ms", goals[1], [cost.took_ms for cost in costs]),
        best_of("hostile.body60_others_late_ms", "ms", goals[2], [cost.late_ms for cost in costs]),
        _worst(forms, goals[2]),
    ]


def _least(fleet: RunningFleet, name: str, size: int) -> BodyCost:
    """The best of some rounds of a form; a round within the goal ends them."""
    path, make = FORMS[name]
    best: BodyCost | None = None
    for _ in range(1 if is_smoke() else ROUNDS):
        cost = cost_of(fleet, path, make(size))
        best = cost if best is None or cost.late_ms < best.late_ms else best
        if best.late_ms <= MAX_LATE_MS:
            break
    assert best is not None
    print(shown(name, best), flush=True)
    return best


def _worst(forms: Mapping[str, BodyCost], goal: float | None) -> Figure:
    lates = sorted(round(cost.late_ms, 1) for cost in forms.values())
    return Figure("hostile.bodies60_others_late_ms", lates[-1], "ms", goal, lates)


def shown(name: str, cost: BodyCost) -> str:
    memory = f"{cost.start_mb:6.0f} {cost.peak_mb:6.0f} {cost.left_mb:6.0f}"
    return f"{name:24} {cost.status:6} {cost.took_ms:8.0f} {memory} {cost.late_ms:11.1f}  {cost.message[:70]}"


def show_forms(size: int, only: Sequence[str] = ()) -> None:
    """Show each form with the same gateway, one after the other."""
    with before_one(bundled_tokenizer()) as fleet:
        for name, (path, make) in FORMS.items():
            if not only or name in only:
                print(shown(name, cost_of(fleet, path, make(size))), flush=True)


def show_texts(size: int, only: Sequence[str] = ()) -> None:
    """Show the worst text of each family, as a completion."""
    for name, text in WORST.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder, before_one(tokenizer_of(name, Path(folder))) as fleet:
            body = json.dumps({"model": "sim", "prompt": text * (size // len(text.encode()))}).encode()
            print(shown(name, cost_of(fleet, COMPLETIONS, body)), flush=True)


if __name__ == "__main__":
    size = SMOKE_BYTES if is_smoke() else NUM_BYTES
    wanted = sys.argv[1:]
    print("body                     status       ms  start   peak   left MB  late ms  message")
    show_forms(size, wanted)
    show_texts(size, wanted)
    if not wanted:
        publish("hostile_body", measure())
