"""Part of `make bench-redis`: gateways that share a real Redis, in one process, with an engine simulated
here.

    decision ratio   a decision on an index that follows (a prompt of 256 blocks that it knows, among a
    million),
                     to the same on an index that reads events directly: CPU time, round by round
    visible          from an event at the gateway that reads it to another one's lookup: p99 of runs of 64
    blocks,
                     by `index: replicated` (its own index) and `index: redis` (a lookup)
    log bytes        size of snapshot and log in Redis per block, for the next reader of the worker's events
    warm             a gateway that starts beside one that has a million blocks in Redis, until it knows all
"""

import asyncio
import statistics
import time
from contextlib import suppress
from typing import Any

from engines.vllm import Vllm
from gateway import request
from gateway.config import load
from gateway.core.block_limits import MAX_BLOCKS, block_limits
from gateway.core.blocks import BlockHash, hash_blocks, root_hash, tokens_of
from gateway.core.decision import Prompt
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksStored
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.service import RadixService
from gateway.ingest.subscription import Subscription
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.redis.options import RedisOptions, redis_of
from gateway.replication.rank_store import RankStore
from gateway.replication.replica_feed import ReplicaFeed
from gateway.replication.session import ReplicationSession
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from loadtest.bench_index import BLOCK_SIZE, new_tokens, prompt_of
from loadtest.extent import extent
from loadtest.report import Figure, median_of

WORKER = Worker(
    WorkerId("10.0.0.1:8000"), "http://10.0.0.1:8000", (ServedModel("m", "m"),), block_size=BLOCK_SIZE
)
ROOT = root_hash("m")
NUM_BLOCKS = extent(20_000, 1_000_000)
PROMPT_BLOCKS = 256
ROUNDS, DECISIONS, CHANGES = extent(1, 5), extent(20, 300), extent(20, 400)
PAUSE_S = 0.003
"""Seconds between two changes: each is alone on its way."""


class PlayedFeed:
    """Feed of an engine that this process plays."""

    endpoint = "played"
    replay_endpoint = None
    is_connected = True

    def stop(self) -> None:
        """Do nothing: no connection is open."""


class ReplicaGateway:
    """Gateway's parts that are measured: index, feed, router."""

    def __init__(self, options: RedisOptions) -> None:
        self.index, self.assumed, self._tasks = MemoryIndex(), AssumedIndex(), Tasks()
        self.router = router_of(self.index, self.assumed)
        self.shared = ReplicationSession(options, index=self.index, assumed=self.assumed)
        self.feed: ReplicaFeed | None = None

    async def start(self) -> None:
        await self.shared.start(self._tasks)
        self.feed = self.shared.open(
            WORKER, self._open_engine, lambda worker, state: None, self._tasks, block_limits(MAX_BLOCKS)
        )

    def _open_engine(self, store: RankStore | None) -> tuple[PlayedFeed, Subscription]:
        self.subscription = Subscription(
            WORKER.id,
            engine=Vllm(),
            index=store or self.index,
            assumed=self.assumed,
            can_replay=False,
            on_state=lambda worker, state: None,
        )
        return PlayedFeed(), self.subscription

    def say(self, *events: BlocksStored) -> None:
        """Publish events as the engine that this gateway reads."""
        assert self.feed and self.feed.leader
        store = self.feed.leader._store
        for event in events:
            store.apply(WORKER.id, event)
        store.settle(WORKER.id, self.subscription.stream, has_more=False)

    @property
    def has_written_all(self) -> bool:
        """True if the log has everything, and no snapshot is in progress."""
        assert self.feed and self.feed.leader
        leader = self.feed.leader
        return leader.has_written_all and leader.writer.last is not None

    @property
    def is_listening(self) -> bool:
        """True if a subscription would be served at once: not while a snapshot is made."""
        assert self.feed and self.feed.leader
        return not self.feed.leader._store.ranks[WORKER.id].is_frozen

    async def used(self) -> int:
        """Memory of the server in bytes."""
        return int((await self.shared._client.info("memory"))["used_memory"])

    @property
    def knows(self) -> int:
        return self.index.num_blocks(WORKER.id)

    async def stop(self) -> None:
        assert self.feed
        self.feed.stop()
        await self._tasks.stop()
        await self.shared.close()


def router_of(index: MemoryIndex, assumed: AssumedIndex) -> Router:
    fleet = Fleet()
    fleet.add(WORKER)
    index.add_worker(WORKER.id, ROOT, BLOCK_SIZE)
    assumed.add_worker(WORKER.id, keep_s=1.0, max_blocks=1)
    policy, nothing = PrefixOverlap(), Prompt()
    return Router(fleet=fleet, index=index, assumed=assumed, policy=policy, tokenize=lambda _: nothing)


async def replica_figures(url: str) -> list[Figure]:
    options = redis_of(load({"redis": url}, environ={}))
    assert options
    reads, direct = ReplicaGateway(options), MemoryIndex()
    beside = router_of(direct, AssumedIndex())
    await reads.start()
    await until(lambda: bool(reads.feed and reads.feed.leader))
    empty = await reads.used()
    asked = new_tokens(PROMPT_BLOCKS)
    for tokens in (asked, *(new_tokens(PROMPT_BLOCKS) for _ in range(NUM_BLOCKS // PROMPT_BLOCKS))):
        events = list(prompt_of(tokens))
        await until(lambda: reads.is_listening)
        reads.say(*events)
        for event in events:
            direct.apply(WORKER.id, event)
        await asyncio.sleep(0)
    await until(lambda: reads.has_written_all)
    log_bytes = (await reads.used() - empty) / direct.num_blocks(WORKER.id)
    follows, warm_s = await warmed(options, direct.num_blocks(WORKER.id))
    figures = [
        median_of("redis.log_bytes", "bytes", None, [log_bytes]),
        median_of("redis.warm_1m_s", "s", 2.0, [warm_s]),
        median_of("redis.replicated_decision_ratio", "x", 1.1, ratios(follows.router, beside, asked)),
        p99("redis.visible_p99_ms", await seen(reads, follows)),
    ]
    await follows.stop()
    await reads.stop()
    return [*figures, p99("redis.tree_visible_p99_ms", await found(options))]


async def warmed(options: RedisOptions, num_blocks: int) -> tuple[ReplicaGateway, float]:
    follows = ReplicaGateway(options)
    started = time.perf_counter()
    await follows.start()
    await until(lambda: follows.knows == num_blocks)
    return follows, time.perf_counter() - started


def ratios(following: Router, direct: Router, tokens: Any) -> list[float]:
    asks = request("/v1/completions", {"model": "m", "prompt": [1]})
    prompt = Prompt((tokens_of([*tokens, 1]),), "ids")

    def taken(router: Router) -> float:
        started = time.thread_time()
        for _ in range(DECISIONS):
            decision = router.decide(asks, prompt=prompt)
            assert decision.overlap_tokens == len(tokens)
            router.finish(decision)
        return time.thread_time() - started

    for router in (following, direct):
        taken(router)
    return [taken(following) / taken(direct) for _ in range(ROUNDS)]


# from one to the other --------------------------------------------------------------------------


def run_of() -> tuple[BlocksStored, list[BlockHash]]:
    tokens = new_tokens(64)
    (event,) = prompt_of(tokens)
    return event, hash_blocks(tokens, BLOCK_SIZE, ROOT)


async def seen(reads: ReplicaGateway, follows: ReplicaGateway) -> list[float]:
    taken = []
    for _ in range(CHANGES):
        event, hashes = run_of()
        started = time.perf_counter()
        reads.say(event)
        await until(lambda hashes=hashes: follows.index.holds(WORKER.id, hashes), 0.0002)  # type: ignore[misc]
        taken.append(time.perf_counter() - started)
        await asyncio.sleep(PAUSE_S)
    return taken


async def found(options: RedisOptions) -> list[float]:
    ours, theirs = RadixService(options), RadixService(options)
    tasks = [asyncio.get_running_loop().create_task(service.run()) for service in (ours, theirs)]
    ours.index.add_worker(WORKER.id, ROOT, BLOCK_SIZE)
    ours.index.publication.publish(WORKER.id, 1, StreamState.EXACT)
    theirs.index.add_worker(WORKER.id, ROOT, BLOCK_SIZE)
    await until(lambda: ours.is_open and theirs.is_open)
    taken = []
    for _ in range(CHANGES):
        event, hashes = run_of()
        started = time.perf_counter()
        ours.index.apply(WORKER.id, event)
        while (await theirs.remote_overlap(ROOT, hashes)).get(WORKER.id) != len(hashes):  # noqa: ASYNC110
            await asyncio.sleep(0.0002)
        taken.append(time.perf_counter() - started)
        await asyncio.sleep(PAUSE_S)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return taken


def p99(name: str, taken_s: list[float]) -> Figure:
    return median_of(name, "ms", 20, [statistics.quantiles(taken_s, n=100)[98] * 1000])


async def until(is_so: Any, pause_s: float = 0.002) -> None:
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110  without a notification
            await asyncio.sleep(pause_s)
