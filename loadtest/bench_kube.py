"""Benchmark `make bench-kube`: how soon a change in Kubernetes reaches routing, the cost of 1,000 pods, and
that of advice for 1,000 workers.

kube.change_to_routed       a known pod becomes ready again in the API ─► its worker may be chosen
kube.pod_to_routed          a new pod appears ─► its worker may be chosen, with the probes of its engine
                            (in both, API server, engine and gateway share a process)
kube.list_1000              a list of 1,000 pods of 8 KB, read, and compared with the roster
zero.…                      a fleet of zero, its cold start, and no lost request (`bench_zero.py`)
advice.cpu_ms_1000_workers  a round of advice for 1,000 workers with 100 cached prefixes each, every 5 s
kube.changes_5000_per_min   CPU share of one core while 5,000 pods a minute change their readiness
"""

import asyncio
import itertools
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import uvloop

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.blocks import root_hash, tokens_of
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksStored
from gateway.core.ledger import Ledger
from gateway.core.worker import Role, ServedModel, Worker, WorkerId
from gateway.discovery.kubernetes.api_objects import PODS as POD_CODEC
from gateway.discovery.kubernetes.api_objects import Pod
from gateway.discovery.kubernetes.client import PAGE_OBJECTS
from gateway.discovery.kubernetes.endpoints import selected_pod_endpoints
from gateway.discovery.kubernetes.membership import Membership, SourceMembers
from gateway.discovery.kubernetes.reflector import ApiFailure, Reflector
from gateway.discovery.kubernetes.tables import EndpointTable
from gateway.discovery.kubernetes.watched_sources import MIN_GAP_S, REST
from gateway.discovery.lifecycle import Lifecycle
from gateway.discovery.roster import Roster
from gateway.http.networks import Reachable
from gateway.index.memory import MemoryIndex
from gateway.observability.metrics import Metrics
from gateway.routing.speed_model import SpeedModels
from gateway.scaling.planner import ROUND_S, SLICES_PER_ROUND, Planner, PlannerSources
from loadtest import bench_zero
from loadtest.extent import extent
from loadtest.report import Figure, best_of, publish
from tests.support.kube_api import PODS, KubeApi, Object, pod

NUM_CHANGES = extent(3, 25)
NUM_PODS = extent(50, 1000)
NUM_EVENTS = extent(100, 5000)
NUM_ROUNDS = extent(1, 3)
PADDING = "x" * 7000
"""Text that makes a pod some 8 KB, as its managed fields and environment do."""
SOURCE = "k8s://llm/pods?app=vllm&port=http"


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        changes, joins = map(sorted, zip(*runner.run(delays_ms(NUM_CHANGES)), strict=True))
    cpu_ms, megabytes = zip(*[listed() for _ in range(NUM_ROUNDS)], strict=True)
    advice_ms = [advised_ms() for _ in range(NUM_ROUNDS)]
    share = [core_share(NUM_EVENTS) for _ in range(NUM_ROUNDS)]
    p99 = changes[min(len(changes) - 1, round(0.99 * len(changes)))]
    publish(
        "bench_kube",
        [
            Figure(
                "kube.change_to_routed_p50_ms", round(statistics.median(changes), 2), "ms", 20, changes[:3]
            ),
            Figure("kube.change_to_routed_p99_ms", round(p99, 2), "ms", 200, changes[-3:]),
            Figure("kube.pod_to_routed_p50_ms", round(statistics.median(joins), 2), "ms", None, joins[:3]),
            best_of("kube.list_1000_cpu_ms", "ms", 50, cpu_ms),
            best_of("kube.list_1000_mb", "MB", 5, megabytes),
            best_of("advice.cpu_ms_1000_workers", "ms", 100, advice_ms),
            best_of("kube.changes_5000_per_min_core_share", "share", 0.02, share),
            *bench_zero.figures(),
        ],
    )


# change to routed --------------------------------------------------------------------------------


async def delays_ms(num: int) -> list[tuple[float, float]]:
    """Delays of a known pod's change, and of a new pod, until decisions see the worker."""
    sim = await Sim(SimConfig(port=0)).start()
    api = await KubeApi().start()
    gateway = Gateway(
        config_of(
            worker=[SOURCE],
            kubernetes_api_server=api.url,
            tokenizer=[str(bundled_tokenizer())],
            port=0,
            admin_port=0,
        )
    )
    await gateway.start()
    try:
        port = int(sim.url.rpartition(":")[2])
        await until(lambda: api.num_watches == 1)
        return [await _delays_ms(gateway, api, port, f"pod-{number}") for number in range(num)]
    finally:
        await gateway.stop()
        await api.stop()
        await sim.stop()


async def _delays_ms(gateway: Gateway, api: KubeApi, port: int, name: str) -> tuple[float, float]:
    def is_routed() -> bool:
        return any(member.is_up and not member.is_draining for member in gateway.fleet)

    began_s = time.perf_counter()
    api.put(PODS, pod(name, port=port))
    await until(is_routed)
    joined_s = time.perf_counter() - began_s
    api.put(PODS, pod(name, port=port, ready=False))
    await until(lambda: not is_routed())
    await asyncio.sleep(2 * MIN_GAP_S)  # two changes, not one
    began_s = time.perf_counter()
    api.put(PODS, pod(name, port=port))
    await until(is_routed)
    changed_s = time.perf_counter() - began_s
    api.remove(PODS, name)
    await until(lambda: not list(gateway.roster))
    return changed_s * 1e3, joined_s * 1e3


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.0005)


# CPU and memory ----------------------------------------------------------------------------------


class _EveryEndpoint:
    """Stands in for the roster and the lifecycle: every endpoint is there, none is probed."""

    def __init__(self) -> None:
        self.urls: set[str] = set()
        self.reasons: dict[str, str] = {}

    def has(self, url: str) -> bool:
        return url in self.urls

    def find(self, url: str) -> None:
        return None

    def add(self, url: str, role: Role | None = None) -> None:
        self.urls.add(url)

    def why(self, url: str) -> str | None:
        return self.reasons.get(url)

    def drain(self, url: str, workers: object, why: str, **how: bool) -> None:
        self.reasons[url] = why

    def undo(self, url: str, workers: object) -> None:
        self.reasons.pop(url, None)


def _membership() -> Membership:
    stand_in = _EveryEndpoint()
    membership = Membership(
        cast(Roster, stand_in), cast(Lifecycle, stand_in), inherit=lambda *_: None, reachable=Reachable()
    )
    membership.sources[SOURCE] = SourceMembers()
    return membership


def _table() -> EndpointTable[Pod]:
    return EndpointTable[Pod](partial(selected_pod_endpoints, port="http"))


def _pod(number: int, version: int = 1, *, ready: bool = True) -> Object:
    annotations = {"padding": PADDING}
    found = pod(
        f"pod-{number}", f"10.0.{number // 250}.{number % 250 + 1}", ready=ready, annotations=annotations
    )
    found["metadata"]["resourceVersion"] = str(version)
    return found


def _pages(num_pods: int) -> list[bytes]:
    pods = [_pod(number) for number in range(num_pods)]
    pages = []
    for start in range(0, num_pods, PAGE_OBJECTS):
        more = str(start + PAGE_OBJECTS) if start + PAGE_OBJECTS < num_pods else None
        metadata = {"resourceVersion": "1", "continue": more}
        pages.append(json.dumps({"metadata": metadata, "items": pods[start : start + PAGE_OBJECTS]}).encode())
    return pages


def _list(
    pages: Sequence[bytes], reflector: Reflector[Pod], table: EndpointTable[Pod], members: Membership
) -> None:
    for page in pages:
        reflector.page(0.0, POD_CODEC.page(page))
    table.replace(reflector.objects)
    members.apply(SOURCE, table.endpoints)


def listed() -> tuple[float, float]:
    """CPU ms and MB of a list that is compared with the one before."""
    pages, reflector = _pages(NUM_PODS), Reflector[Pod](random.Random(1))
    table, members = _table(), _membership()
    _list(pages, reflector, table, members)
    reflector.failed(0.0, ApiFailure("410", 410))
    began_s = time.process_time()
    _list(pages, reflector, table, members)
    cpu_ms = (time.process_time() - began_s) * 1e3
    assert len(members.sources[SOURCE].by_url) == NUM_PODS
    tracemalloc.start()
    fresh, others = _table(), _membership()
    _list(pages, Reflector[Pod](random.Random(1)), fresh, others)
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return cpu_ms, megabytes


def advised_ms() -> float:
    """CPU ms of a round of advice, with the slices of the index that belong to it."""
    fleet, metrics, index, speeds = Fleet(), Metrics(), MemoryIndex(), SpeedModels()
    now = iter(itertools.count(0.0, ROUND_S))
    sources = PlannerSources(fleet, Ledger(), metrics, index, speeds, lambda: {})
    planner = Planner(sources, 2.0, 300.0, clock=lambda: next(now))
    with fleet.batch():
        workers = [_cached_worker(fleet, index, number) for number in range(NUM_PODS)]
    cpu_ms = 0.0
    for _ in range(3):
        for worker in workers:
            metrics.worker(worker).num_requests += 5
            metrics.worker(worker).ttft_s.observe(0.2)
            speeds.computed(worker, 5_000)
        began_s = time.process_time()
        planner.round()
        for _ in range(SLICES_PER_ROUND):
            if not planner.count_own_blocks():
                break
        cpu_ms = (time.process_time() - began_s) * 1e3
    assert planner.advices()[0].num_up == NUM_PODS
    return cpu_ms


def _cached_worker(fleet: Fleet, index: MemoryIndex, number: int) -> WorkerId:
    worker = WorkerId(f"10.0.{number // 250}.{number % 250 + 1}:8000")
    fleet.add(Worker(worker, f"http://{worker}", (ServedModel("m", "m"),), block_size=16))
    index.add_worker(worker, root_hash("m"), 16)
    for prefix in range(100):
        tokens = tokens_of([number, prefix] * 16)
        index.apply(worker, BlocksStored([2 * prefix, 2 * prefix + 1], None, tokens, 16))
    return worker


def core_share(num_events: int) -> float:
    """Share of a core that so many changes of readiness take, if they came within a minute."""
    reflector, table, members = Reflector[Pod](random.Random(1)), _table(), _membership()
    _list(_pages(NUM_PODS), reflector, table, members)
    lines = [_line(number) for number in range(num_events)]
    began_s, next_at_s = time.process_time(), 0.0
    for number, line in enumerate(lines):
        change = reflector.event(0.0, POD_CODEC.event(line))
        assert change is not None
        table.change(change)
        now_s = number * 60.0 / num_events
        if now_s >= next_at_s:
            apply_began_s = time.process_time()
            members.apply(SOURCE, table.endpoints)
            next_at_s = now_s + max(MIN_GAP_S, REST * (time.process_time() - apply_began_s))
    return (time.process_time() - began_s) / 60.0


def _line(number: int) -> bytes:
    changed: Mapping[str, object] = _pod(number % NUM_PODS, 2 + number, ready=number // NUM_PODS % 2 == 1)
    return json.dumps({"type": "MODIFIED", "object": changed}).encode()


if __name__ == "__main__":
    main()
