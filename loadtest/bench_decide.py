"""Cost of the decision service, a part of `make bench-epp`: CPU-us of a decision and the report of its end.

    decide_client ─► own        Decide and Report as unary calls, or both in a Session
                  ─► grpc.aio   the same gateway, its services carried by grpc.aio
    decide_inside               the library: the same decision without a service

`decide.cpu_us` is what the service adds to the decision. Prompts are 256 new token ids, eight at a time.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from loadtest.extent import extent
from loadtest.fleet import GATEWAY
from loadtest.instruments import BenchError, fake_worker
from loadtest.report import Figure, best_of, median_of

NUM_WARM = extent(20, 1000)
NUM = extent(100, 4000)
TIMEOUT_S = 120.0
CARRIERS = ("own", "grpc.aio")
METHODS = ("unary", "session")

NUM_WORKERS = 2

Rounds = MutableMapping[str, list[float]]
RunGateway = Callable[[str, Sequence[int]], AbstractContextManager[tuple[int, int]]]
"""Runs a gateway of a kind with workers at these ports; yields its process id and port."""


def measure_decisions(picker: RunGateway, found: Rounds) -> None:
    """Add a round's costs, at workers that publish no events. Raises BenchError."""
    with ExitStack() as stack:
        ports = [stack.enter_context(fake_worker("-u", "1")) for _ in range(NUM_WORKERS)]
        workers = [f"http://127.0.0.1:{each}" for each in ports]
        inside = [GATEWAY[0], "-P", "-m", "loadtest.decide_inside", str(NUM), *workers]
        found["decide.inside"].append(_printed(inside))
        for kind in CARRIERS:
            with picker(kind, ports) as (pid, port):
                for method in METHODS:
                    client = [sys.executable, "-m", "loadtest.decide_client", str(port), str(pid), method]
                    found[f"decide.{kind}.{method}"].append(_printed([*client, str(NUM_WARM), str(NUM)]))


def _printed(command: Sequence[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise BenchError(f"{command[2:4]} failed: {done.stderr[-2000:]}")
    return float(done.stdout)


def decision_figures(found: Mapping[str, list[float]]) -> Iterator[Figure]:
    inside = min(found["decide.inside"])
    for method, more, goal in (("unary", "", 40.0), ("session", "session_", None)):
        own = [each - inside for each in found[f"decide.own.{method}"]]
        aio = [each - inside for each in found[f"decide.grpc.aio.{method}"]]
        yield best_of(f"decide.{more}cpu_us", "us", goal, own)
        yield best_of(f"decide.{more}grpc_aio_cpu_us", "us", None, aio)
        ratios = [one / other for one, other in zip(own, aio, strict=True)]
        yield median_of(f"decide.{more}ratio", "", 0.5, ratios)
    yield best_of("decide.in_process_us", "us", None, found["decide.inside"])
