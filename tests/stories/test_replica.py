"""Gateways that share a real Redis, before simulated engines: every index is the engines' own caches, block
for block, whoever reads them. What becomes of Redis: `test_lost_redis_stories`.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config import replaced
from gateway.replication.replica_feed import ReplicaFeed
from gateway.replication.session import ReplicaTimes
from tests.redis.serving import Server, Several, redis_server, server
from tests.stories.test_fleet import Story, story, worker_id
from tests.support.gateway_process import GatewayProcess

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Pace:
    times: ReplicaTimes
    timeout_s: float


LASTING = Pace(ReplicaTimes(lease_s=60, renew_s=0.1, ask_s=0.1, grace_s=20, pause_s=0.01), 10)
"""However slow the machine is, nothing is lost but by what a story does."""
QUICK = Pace(
    ReplicaTimes(lease_s=0.6, renew_s=0.1, grace_s=0.5, direct_after_s=0.4, retry_s=0.05, pause_s=0.01), 0.3
)
"""For stories without Redis: who reads may change at any time, also for no reason but slowness."""


@asynccontextmanager
async def beside(
    first: Story, server: Server | Several, pace: Pace = LASTING, *, kind: type[Story] = Story, **options: Any
) -> AsyncIterator[Any]:
    """A gateway that shares Redis, before the same engines. `first` shares nothing and judges nothing."""
    changes = {"redis": server.url, "redis_timeout_s": pace.timeout_s} | options
    gateway = Gateway(replaced(first.gateway.config, **changes))
    assert gateway.shared
    gateway.shared.times = pace.times
    await gateway.start()
    try:
        told = kind(gateway, first.sims, first.session)
        await told.until(lambda: len(gateway.fleet) == len(first.gateway.fleet))
        yield told
    finally:
        await gateway.stop()


Join = Callable[..., AbstractAsyncContextManager[Any]]
"""`beside`, or what calls it."""


@asynccontextmanager
async def several(
    server: Server | Several, num: int = 2, pace: Pace = LASTING, *, join: Join = beside, **sim: Any
) -> AsyncIterator[tuple[Story, list[Any]]]:
    """So many of them, each by `join`."""
    async with story(**sim) as first, AsyncExitStack() as stack:
        sharing = []
        for _ in range(num):
            sharing.append(await stack.enter_async_context(join(first, server, pace=pace)))
            await sharing[-1].settled()
            if "replay_buffer" in sim:
                await sharing[-1].heard()
        yield first, sharing


def feeds(told: Story) -> list[ReplicaFeed]:
    assert told.gateway.shared
    return list(told.gateway.shared.feeds.values())


def num_held(told: Story) -> int:
    return sum(feed.leader is not None for feed in feeds(told))


def sums(told: Story) -> dict[str, int]:
    names = ("num_takeovers", "num_fenced", "num_rewrites", "num_resyncs")
    return {name: sum(getattr(feed.counts, name) for feed in feeds(told)) for name in names}


def last_id(server: Server, key: str) -> str:
    with server.direct() as client:
        ((name, _),) = client.xrevrange(key, count=1)
        return str(name.decode())


def num_resets(told: Story) -> list[int]:
    return [feed.stream.counts.num_resets for feed in feeds(told)]


async def settled(*all_of_them: Story) -> None:
    for told in all_of_them:
        await told.settled()


async def holds(told: Story) -> None:
    await told.until(lambda: num_held(told) == len(told.sims))


@pytest.mark.parametrize("flags", [{"hash": "bytes"}, {"kv_blocks": 60}])
async def test_one_reads_and_all_know(server: Server, flags: dict[str, Any]) -> None:
    async with several(server, 3, **flags) as (_, sharing):
        assert [num_held(told) for told in sharing] == [2, 0, 0]
        for seed, told in enumerate(sharing):
            await told.talk(100 + seed, 4, 3)
            await settled(*sharing)
        assert [sums(told) for told in sharing[1:]] == [dict.fromkeys(sums(sharing[0]), 0)] * 2
        assert sum(sharing[1].gateway.shared.delays_s.counts) > 0  # type: ignore[union-attr]


async def test_one_that_starts_late_is_exact_where_the_engines_buffers_are_too_short(server: Server) -> None:
    async with several(server, 1, replay_buffer=2) as (first, (early,)):
        await early.talk(110)
        await early.settled()
        async with beside(first, server) as late:
            await late.settled()
            assert (num_held(late), num_resets(late)) == (0, [1, 1])
            await late.talk(111)
            await settled(early, late)


async def test_one_that_ends_leaves_its_work_to_another(server: Server) -> None:
    """The engines' buffers reach back two batches: the other goes on where the first stopped."""
    async with several(server, 1, replay_buffer=2) as (first, (stays,)):
        await stays.talk(112)
        await stays.settled()
        async with beside(first, server) as leaves:
            await leaves.settled()
            before = num_resets(leaves)
            await stays.gateway.stop(0)
            await holds(leaves)
            await leaves.heard()
            await leaves.talk(113)
            await leaves.settled()
            assert num_resets(leaves) == before
            assert sums(leaves)["num_takeovers"] == 2


async def test_an_engine_that_restarts_is_forgotten_by_all(server: Server) -> None:
    async with several(server) as (_, sharing):
        await sharing[0].talk(114)
        await settled(*sharing)
        await sharing[0].sims[0].restart(0.0)
        for told in sharing:
            gone = worker_id(told.sims[0])
            await told.until(lambda told=told, gone=gone: told.gateway.index.num_blocks(gone) == 0)  # type: ignore[misc]
        await settled(*sharing)
        await sharing[1].talk(115)
        await settled(*sharing)


@asynccontextmanager
async def process(first: Story, server: Server, index: str = "replicated") -> AsyncIterator[GatewayProcess]:
    """That reads both workers' events for all. The engines run in this loop: it is waited for in a thread."""
    workers = [flag for sim in first.sims for flag in ("--worker", sim.url)]
    tokenizer = first.gateway.config.tokenizer.path[0]
    flags = ("--tokenizer", tokenizer, "--redis", server.url, "--probe-interval-s", "0.2")
    reads = GatewayProcess(*workers, *flags, "--index", index)
    await asyncio.to_thread(reads.__enter__)
    try:
        await first.until(lambda: metric(reads, "replica_leader") == 2)
        yield reads
    finally:
        if reads.process.poll() is None:
            reads.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(reads.stop)
        told = reads.log()
        reads._log.close()
        assert "Traceback" not in told and " ERROR " not in told, told


def metric(running: GatewayProcess, name: str) -> float:
    lines = [line for line in running.metrics().splitlines() if line.startswith(f"kvgate_{name}{{")]
    return sum(float(line.split()[-1]) for line in lines)


async def test_who_reads_is_killed(server: Server) -> None:
    """What was said meanwhile is replayed, and nothing else."""
    async with story() as first, process(first, server) as reads, beside(first, server) as follows:
        await follows.talk(127)
        await follows.settled()
        before = num_resets(follows)
        reads.process.kill()
        await follows.talk(128, 2, 2)
        await holds(follows)
        await follows.settled()
        assert num_resets(follows) == before
        assert sums(follows) == {
            "num_takeovers": 2,
            "num_fenced": 0,
            "num_rewrites": 0,
            "num_resyncs": 0,
        }


async def test_who_reads_is_stopped_past_its_lease_and_then_writes_nothing(server: Server) -> None:
    async with story() as first, process(first, server) as reads, beside(first, server) as follows:
        await follows.talk(129)
        await follows.settled()
        reads.process.send_signal(signal.SIGSTOP)
        await follows.talk(130, 2, 2)  # what it will find in its sockets, and want to write
        await holds(follows)
        await follows.settled()
        written = {feed._log.keys.log: last_id(server, feed._log.keys.log) for feed in feeds(follows)}
        reads.process.send_signal(signal.SIGCONT)
        await follows.until(lambda: metric(reads, "replica_leader") == 0)
        assert {key: last_id(server, key) for key in written} == written
        assert sums(follows)["num_rewrites"] == 0
        await follows.talk(131)
        await follows.settled()
        blocks = sum([len(await follows.held(sim)) for sim in follows.sims])
        await follows.until(lambda: metric(reads, "index_blocks") == blocks)
        assert num_held(follows) == 2


async def test_fleets_with_other_prefixes_do_not_meet(server: Server) -> None:
    async with several(server, 1) as (first, (one,)):
        config = replaced(one.gateway.config, redis_prefix="other")
        gateway = Gateway(config)
        await gateway.start()
        try:
            other = Story(gateway, first.sims, first.session)
            await holds(other)
            await other.talk(126)
            await settled(one, other)
            assert num_held(one) == 2
        finally:
            await gateway.stop()
