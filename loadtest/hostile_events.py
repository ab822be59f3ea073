"""Cost of a worker that publishes far too many KV events, for others.

    hostile.flood_good_p99_ms      how much later requests to other workers end while it floods, at the p99
    hostile.giant_event_stall_ms   longest time that the loop computes without service, while giant messages
    come
    hostile.index_mb_per_liar      memory per worker that stores blocks without removing them, and declares
                                   room for 1,000

Its events come from a process of its own (`liar.py`) with the lowest priority. SMOKE=1 takes a few seconds
and proves that all of it runs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.contenders import metric_sum, samples
from loadtest.fleet import RunningFleet, gateway_before, rss_mb
from loadtest.instruments import LoadgenLoad, fake_worker, stop
from loadtest.instruments import measure as put_load
from loadtest.report import Figure, best_of
from loadtest.workloads.bodies import Texts, small

CHAT = "/v1/chat/completions"
IS_SMOKE = bool(os.environ.get("SMOKE"))
SLICE_S = 0.5 if IS_SMOKE else 3.0
ROUNDS = 1 if IS_SMOKE else 2
NUM_BODIES = 4_000
CONNECTIONS = 4
THINK_MS = 10
DECLARED = 1_000
HOARDED = 40_000 if IS_SMOKE else 250_000
NUM_LIARS = 1 if IS_SMOKE else 2
ROOMY = 1_000_000
"""Blocks: enough for each giant event, which then is bounded by nothing but its size."""
NUM_KEPT = 60_000
"""Blocks of the giant event that may be applied."""
SETTLE_S = 0.2
TIMEOUT_S = 30.0
CUTS = "kvgate_event_stream_overflows_total"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HostileError(RuntimeError):
    """Run with figures that would be misleading."""


@dataclass(frozen=True, slots=True)
class LyingWorker:
    process: "subprocess.Popen[str]"
    url: str

    def send(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait(self) -> None:
        """Wait until all is sent."""
        assert self.process.stdout is not None
        self.process.stdout.readline()


@contextmanager
def liar(mode: str, amount: float, declared: int) -> Iterator[LyingWorker]:
    command = ["nice", "-n", "19", sys.executable, "-m", "loadtest.liar", mode, str(amount)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        sources = process.stdout.readline()
        with fake_worker("-k", str(declared), "-e", sources.strip(), "-m", "liar") as port:
            yield LyingWorker(process, f"http://127.0.0.1:{port}")
    finally:
        stop(process)
        if process.stdin is not None:
            process.stdin.close()


@contextmanager
def fleet(*liars: LyingWorker) -> Iterator[RunningFleet]:
    """Run a gateway with a good worker and `liars`, which it follows."""
    with fake_worker("-g", "0") as port:
        urls = [f"http://127.0.0.1:{port}", *(each.url for each in liars)]
        with gateway_before(urls, []) as running:
            _until(lambda: _num_followed(running) == len(liars), "the liars' events are followed")
            yield running


def measure() -> list[Figure]:
    """Measure the figures. Raises HostileError, InstrumentError."""
    with tempfile.TemporaryDirectory() as directory:
        bodies = Path(directory) / "bodies"
        small(Texts("m", seed=1), NUM_BODIES).write(bodies)
        floods = [flood(bodies) for _ in range(ROUNDS)]
    stalls = [max(giant(kind) for kind in range(3)) for _ in range(ROUNDS)]
    return [
        best_of("hostile.flood_good_p99_ms", "ms", 20.0, floods),
        best_of("hostile.giant_event_stall_ms", "ms", 20.0, stalls),
        best_of("hostile.index_mb_per_liar", "MB", 64.0, [hoard()]),
    ]


def flood(bodies: Path) -> float:
    load = LoadgenLoad(CHAT, CONNECTIONS, SLICE_S, warm_up_s=0.3, think_ms=THINK_MS)
    with liar("flood", 10 * TIMEOUT_S, DECLARED) as bad, fleet(bad) as running:
        port = int(running.gateway_url.rpartition(":")[2])
        quiet = put_load(port, bodies, load)
        bad.send()
        _until(lambda: _total(running, "kvgate_event_stream_batches_total") > 0, "the flood has begun")
        flooded = put_load(port, bodies, load)
        if quiet.num_errors or flooded.num_errors or not flooded.num_requests:
            failed = f"{quiet.num_errors} and {flooded.num_errors} of {flooded.num_requests} failed"
            raise HostileError(f"requests to the good worker: {failed}")
        print(f"p99 {quiet.latency_p99_us} us quiet, {flooded.latency_p99_us} us in a flood")
        return max(0.0, (flooded.latency_p99_us - quiet.latency_p99_us) / 1000)


def giant(kind: int) -> float:
    """Longest time in ms that the loop computed without a pause."""
    with liar("giant", kind, ROOMY) as bad, fleet(bad) as running:
        _page(running)  # which resets the longest until then
        stalls: list[float] = []

        def is_dealt_with() -> bool:
            page = _page(running)
            stalls.extend(samples(page, "kvgate_event_loop_cpu_lag_max_seconds"))
            refused = metric_sum(page, CUTS) + metric_sum(
                page, "kvgate_event_stream_undecodable_batches_total"
            )
            return refused > 0 or metric_sum(page, "kvgate_index_blocks") >= NUM_KEPT

        bad.send()
        _until(is_dealt_with, "the giant event is applied or refused")
        time.sleep(SETTLE_S)
        is_dealt_with()
        stall_s = max(stalls)
    print(f"giant {kind}: {1000 * stall_s:.1f} ms")
    return 1000 * stall_s


def hoard() -> float:
    with ExitStack() as stack:
        liars = [stack.enter_context(liar("hoard", HOARDED, DECLARED)) for _ in range(NUM_LIARS)]
        running = stack.enter_context(fleet(*liars))
        before = most = rss_mb(running.gateway_pid)
        for each in liars:
            each.send()
        for each in liars:
            each.wait()
            most = max(most, rss_mb(running.gateway_pid))
        print(f"RSS {before:.0f} MB before, {most:.0f} MB behind {NUM_LIARS} liars")
        return (most - before) / NUM_LIARS


def _until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise HostileError(f"never happened: {what}")
        time.sleep(0.05)


def _get(url: str) -> str:
    with _direct.open(url, timeout=60) as answer:
        return str(answer.read().decode())


def _page(running: RunningFleet) -> str:
    return _get(f"{running.admin_url}/metrics")


def _total(running: RunningFleet, name: str) -> float:
    return metric_sum(_page(running), name)


def _num_followed(running: RunningFleet) -> int:
    endpoints = json.loads(_get(f"{running.admin_url}/admin/workers"))["endpoints"]
    workers = [worker for endpoint in endpoints for worker in endpoint["workers"]]
    return sum(worker["is_up"] and worker["events_connected"] for worker in workers)
