"""Memory and stalls of the gateway, for `make bench-proxy`: figures for capacity planning.

rss           resident memory when it is ready, with a tokenizer of 32,768 entries
streams_10k   with 10,000 open streams; as many as the limit of open files allows, then extrapolated
slow_reader   cost of one client that reads nothing of a stream without end, sockets' buffers apart
worst_stall   longest time without service, a million blocks known, under small, known and long new
              prompts at once, and while a worker with a quarter of them was forgotten; by the wall clock,
              where a core that others take counts too, by the loop's own CPU time, and beside
              it how late a process woke meanwhile that only slept: the machine's own part
"""

import json
import re
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.app import bundled_tokenizer
from gateway.runtime.descriptors import FILES_PER_REQUEST, Descriptors
from loadtest.contenders import GatewayContender, fake_workers, flood_worker, gateway, metric_sum
from loadtest.extent import extent
from loadtest.fleet import rss_mb
from loadtest.instruments import InstrumentError, LoadgenLoad, LoadgenReading, fake_worker, measure
from loadtest.report import Figure, best_of
from loadtest.vocabulary import tokenizer_32k

NAMES = ("rss", "streams_10k", "slow_reader", "worst_stall")
NUM_WORKERS = extent(2, 4)
NUM_STREAMS = extent(200, 10_000)
SPARE_FILES = 100
"""Files of the gateway that are no stream's: its own, probes, and connections to workers that are kept."""
MIN_STREAMS = 50
NUM_SLOW = extent(20, 1_000)
BLOCKS_PER_WORKER = extent(2_000, 250_000)
LONG_BYTES = 256_000
MIX_SECONDS = extent(0.5, 8.0)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class BodyFiles(Protocol):
    """Files of `bench_proxy`: the workers' prompts, and bodies that continue them."""

    def prompts(self) -> Path: ...
    def bodies(self, name: str) -> Path: ...
    def long_bodies(self) -> Path: ...


def figures(names: Collection[str], rounds: int, materials: BodyFiles) -> Iterator[Figure]:
    """Figures of NAMES that are requested."""
    if not set(NAMES) & set(names):
        return
    prompts = materials.prompts()
    tokenizer = tokenizer_32k()
    if "rss" in names:
        yield best_of("proxy.rss_mb", "MB", 120, [rss(tokenizer, prompts) for _ in range(rounds)])
    if "streams_10k" in names:
        yield best_of("proxy.streams_10k_mb", "MB", 1000, [streams(tokenizer) for _ in range(rounds)])
    if "slow_reader" in names:
        found = [slow_readers(tokenizer) for _ in range(rounds)]
        yield best_of("proxy.slow_reader_kb", "KB", 256, found)
    if "worst_stall" in names:
        loads = [
            (materials.bodies("small"), LoadgenLoad(CHAT, 8, MIX_SECONDS, think_ms=20)),
            (materials.bodies("16k_warm"), LoadgenLoad(CHAT, 8, MIX_SECONDS, think_ms=40)),
            (materials.long_bodies(), LoadgenLoad(COMPLETION, 2, MIX_SECONDS, think_ms=100)),
        ]
        found_stalls = [stall(prompts, loads) for _ in range(rounds)]
        yield best_of("proxy.worst_stall_ms", "ms", 10, [found.load.lag_ms for found in found_stalls])
        yield best_of("proxy.worst_stall_cpu_ms", "ms", 10, [found.load.cpu_ms for found in found_stalls])
        yield best_of("proxy.machine_stall_ms", "ms", None, [found.load.machine_ms for found in found_stalls])
        yield best_of("proxy.worst_gc_ms", "ms", 10, [found.load.gc_ms for found in found_stalls])
        yield best_of("proxy.drop_worker_stall_ms", "ms", 10, [found.drop.lag_ms for found in found_stalls])
        yield best_of("proxy.drop_worker_cpu_ms", "ms", 10, [found.drop.cpu_ms for found in found_stalls])


def rss(tokenizer: Path, prompts: Path) -> float:
    with fake_workers(NUM_WORKERS, 5, prompts) as ports, gateway(ports, tokenizer) as contender:
        print(f"rss: {contender.start_rss_mb:.1f} MB at the start")
        return contender.start_rss_mb


# open streams ----------------------------------------------------------------------------------


def streams(tokenizer: Path) -> float:
    """Each client has one stream open; its worker sends a piece every two seconds."""
    num = affordable(NUM_STREAMS, raised_limit())
    with _slow_fleet() as ports, gateway(ports, tokenizer, "--events", "off") as contender:
        with _clients(num, contender.port) as clients:
            for client in clients:
                _expect(client)
            taken = rss_mb(contender.pid) - contender.start_rss_mb
        reckoned = contender.start_rss_mb + taken * NUM_STREAMS / num
        print(
            f"streams_10k: {num} open, {taken * 1000 / num:.1f} KB each, {reckoned:.0f} MB for {NUM_STREAMS}"
        )
        return reckoned


def raised_limit() -> int:
    """Limit of open files of this process and those that it starts, raised as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses what is over its own maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def affordable(num: int, limit: int) -> int:
    """Number of streams, at most `num`, that a gateway with this limit of open files accepts at once.

    Raises InstrumentError where they are too few to measure.
    """
    found = min(num, (Descriptors(limit).clients_end - SPARE_FILES) // FILES_PER_REQUEST)
    if found < min(num, MIN_STREAMS):
        raise InstrumentError(
            f"{limit} open files are too few for open streams; raise the limit (ulimit -n 1024)"
        )
    return found


@contextmanager
def _slow_fleet() -> Iterator[list[int]]:
    flags = "-n", "100000", "-g", "2000"
    with fake_worker(*flags) as a, fake_worker(*flags) as b, fake_worker(*flags) as c:
        yield [a, b, c]


@contextmanager
def _clients(num: int, port: int, receive_buffer: int = 0) -> Iterator[list[socket.socket]]:
    """Connections with a stream asked for, each with a prompt of its own."""
    clients: list[socket.socket] = []
    try:
        for number in range(num):
            client = socket.socket()
            clients.append(client)
            if receive_buffer:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            client.settimeout(30)
            _open_stream(client, port, number)
            if number % 100 == 99 and not receive_buffer:
                _expect(client)  # not faster than they are accepted
        yield clients
    finally:
        for client in clients:
            client.close()


def _open_stream(client: socket.socket, port: int, number: int) -> None:
    try:
        client.connect(("127.0.0.1", port))
        client.sendall(_ask(number))
    except OSError as exc:
        raise InstrumentError(f"the gateway did not accept stream {number + 1}: {exc}") from exc


def _ask(number: int) -> bytes:
    question = {"role": "user", "content": f"question {number}"}
    body = json.dumps({"model": "m", "messages": [question], "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _expect(client: socket.socket) -> None:
    try:
        head = client.recv(12, socket.MSG_PEEK)
    except OSError as exc:
        raise InstrumentError(f"a stream did not begin: {exc}") from exc
    if head != b"HTTP/1.1 200":
        raise InstrumentError(f"a stream did not begin: {head!r}")


# clients that do not read ----------------------------------------------------------------------


def slow_readers(tokenizer: Path) -> float:
    """Cost of clients that do not read, once everything on the way is full."""
    num = affordable(NUM_SLOW, raised_limit())
    with flood_worker() as port, gateway([port], tokenizer, "--events", "off") as contender:
        with _clients(num, contender.port, receive_buffer=1 << 16):
            taken = _settled_rss_mb(contender.pid) - contender.start_rss_mb
        print(f"slow_reader: {taken:.0f} MB for {num}")
        return taken * 1000 / num


def _settled_rss_mb(pid: int, timeout_s: float = 60.0) -> float:
    """Memory of the process when it has not grown for two seconds."""
    last, since, end = rss_mb(pid), time.monotonic(), time.monotonic() + timeout_s
    while time.monotonic() - since < 2:
        if time.monotonic() > end:
            raise InstrumentError("the gateway's memory does not stop growing behind slow readers")
        time.sleep(0.1)
        if (now := rss_mb(pid)) > last + 1:
            last, since = now, time.monotonic()
    return last


# stalls ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class WorstStall:
    """Worst stall in milliseconds over all pages that were read."""

    lag_ms: float = 0.0
    cpu_ms: float = 0.0
    gc_ms: float = 0.0
    machine_ms: float = 0.0  # of a process that only slept meanwhile

    def read(self, page: str) -> None:
        """Read a page of /metrics, which has the worst stall since the one before."""
        lag, cpu, collector = (
            metric_sum(page, f"kvgate_{name}_max_seconds") * 1000
            for name in ("event_loop_lag", "event_loop_cpu_lag", "gc_pause")
        )
        self.lag_ms, self.cpu_ms = max(self.lag_ms, lag), max(self.cpu_ms, cpu)
        self.gc_ms = max(self.gc_ms, collector)


@dataclass(frozen=True, slots=True)
class Stalls:
    load: WorstStall
    drop: WorstStall


def stall(prompts: Path, loads: Sequence[tuple[Path, LoadgenLoad]]) -> Stalls:
    found = Stalls(WorstStall(), WorstStall())
    full = fake_workers(NUM_WORKERS, 5, prompts, BLOCKS_PER_WORKER)
    with full as ports, gateway(ports, bundled_tokenizer()) as contender:
        known = metric_sum(contender.metrics(), "kvgate_index_blocks")
        with _sleeper(found.load):
            _under_load(contender, loads, found.load)
        _drop(contender, ports[-1])
        time.sleep(2)  # deferred work is done in the meantime
        found.drop.read(contender.metrics())
        rss = rss_mb(contender.pid)
    print(
        f"worst_stall: {known:,.0f} blocks known, {found.load}, a worker forgotten {found.drop}, {rss:.0f} MB"
    )
    return found


def _under_load(
    contender: GatewayContender, loads: Sequence[tuple[Path, LoadgenLoad]], worst: WorstStall
) -> None:
    contender.metrics()  # the worst stall before is reported here
    with ThreadPoolExecutor(len(loads)) as threads:
        running: list[Future[LoadgenReading]] = [
            threads.submit(measure, contender.port, path, load) for path, load in loads
        ]
        while not all(each.done() for each in running):
            time.sleep(0.5)
            worst.read(contender.metrics())
    for each in running:
        reading = each.result()
        if reading.num_errors or not reading.num_requests:
            raise InstrumentError(f"{reading.num_requests} answered, {reading.num_errors} failed")
        print(f"{'':12} {reading.num_requests} requests, p99 {reading.latency_p99_us / 1000:.1f} ms")


@contextmanager
def _sleeper(worst: WorstStall) -> Iterator[None]:
    command = [sys.executable, "-m", "loadtest.sleeper"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        output, _ = process.communicate(timeout=20)
    worst.machine_ms = float(output)


def _drop(contender: GatewayContender, port: int) -> None:
    request = urllib.request.Request(f"{contender.admin_url}/admin/workers/127.0.0.1:{port}", method="DELETE")
    with _direct.open(request, timeout=10) as answer:
        if not re.search(rb"removed", answer.read()):
            raise InstrumentError("the worker was not dropped")
