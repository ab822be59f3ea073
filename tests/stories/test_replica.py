"""Gateways that share a real Redis, before simulated engines.

The leader of a worker reads its events, and every gateway's index has exactly the blocks that the engines
have cached. Failures of Redis itself are in `test_lost_redis.py`.
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
from gateway.replication.redis_link import ReplicaTimes
from gateway.replication.replica_feed import ReplicaFeed
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
"""Leases long enough that leaders change only by what a story does, however slow the machine is."""
QUICK = Pace(
    ReplicaTimes(lease_s=0.6, renew_s=0.1, grace_s=0.5, direct_after_s=0.4, retry_s=0.05, pause_s=0.01), 0.3
)
"""Short leases, for stories that lose Redis: leaders may change at any time, also on a slow machine."""


@asynccontextmanager
async def sharing_gateway(
    first: Story, server: Server | Several, pace: Pace = LASTING, *, kind: type[Story] = Story, **options: Any
) -> AsyncIterator[Any]:
    """A gateway that shares Redis, before the engines of `first`, which itself shares nothing."""
    changes = {"redis": server.url, "redis_timeout_s": pace.timeout_s} | options
    gateway = Gateway(replaced(first.gateway.config, **changes))
    assert gateway.shared
    gateway.shared.times = pace.times
    await gateway.start()
    try:
        s = kind(gateway, first.sims, first.session)
        await s.until(lambda: len(gateway.fleet) == len(first.gateway.fleet))
        yield s
    finally:
        await gateway.stop()


Join = Callable[..., AbstractAsyncContextManager[Any]]
"""`sharing_gateway`, or a function that calls it."""


@asynccontextmanager
async def sharing_gateways(
    server: Server | Several, num: int = 2, pace: Pace = LASTING, *, join: Join = sharing_gateway, **sim: Any
) -> AsyncIterator[tuple[Story, list[Any]]]:
    """Simulated engines and `num` gateways that share Redis, each made by `join`; the first one leads."""
    async with story(**sim) as first, AsyncExitStack() as stack:
        sharing = []
        for _ in range(num):
            sharing.append(await stack.enter_async_context(join(first, server, pace=pace)))
            await sharing[-1].settled()
            if "replay_buffer" in sim:
                await sharing[-1].until_subscribed()
        yield first, sharing


def feeds(s: Story) -> list[ReplicaFeed]:
    assert s.gateway.shared
    return list(s.gateway.shared.feeds.values())


def num_led(s: Story) -> int:
    return sum(feed.leader is not None for feed in feeds(s))


def sums(s: Story) -> dict[str, int]:
    names = ("num_takeovers", "num_fenced", "num_rewrites", "num_resyncs")
    return {name: sum(getattr(feed.counts, name) for feed in feeds(s)) for name in names}


def last_id(server: Server, key: str) -> str:
    with server.direct() as client:
        ((name, _),) = client.xrevrange(key, count=1)
        return str(name.decode())


def num_resets(s: Story) -> list[int]:
    return [feed.stream.counts.num_resets for feed in feeds(s)]


async def all_settled(*gateways: Story) -> None:
    for s in gateways:
        await s.settled()


async def until_leader(s: Story) -> None:
    await s.until(lambda: num_led(s) == len(s.sims))


@pytest.mark.parametrize("flags", [{"hash": "bytes"}, {"kv_blocks": 60}])
async def test_all_gateways_know_the_events_that_one_leader_reads(
    server: Server, flags: dict[str, Any]
) -> None:
    async with sharing_gateways(server, 3, **flags) as (_, sharing):
        assert [num_led(s) for s in sharing] == [2, 0, 0]
        for seed, s in enumerate(sharing):
            await s.talk(100 + seed, 4, 3)
            await all_settled(*sharing)
        assert [sums(s) for s in sharing[1:]] == [dict.fromkeys(sums(sharing[0]), 0)] * 2
        assert sum(sharing[1].gateway.shared.delays_s.counts) > 0  # type: ignore[union-attr]


async def test_late_follower_is_exact_where_replay_buffers_are_too_short(server: Server) -> None:
    async with sharing_gateways(server, 1, replay_buffer=2) as (first, (early,)):
        await early.talk(110)
        await early.settled()
        async with sharing_gateway(first, server) as late:
            await late.settled()
            assert (num_led(late), num_resets(late)) == (0, [1, 1])
            await late.talk(111)
            await all_settled(early, late)


async def test_stopping_leader_hands_over_to_a_follower(server: Server) -> None:
    """Replay buffers reach back two batches, so the next leader continues where the first one stopped."""
    async with sharing_gateways(server, 1, replay_buffer=2) as (first, (early,)):
        await early.talk(112)
        await early.settled()
        async with sharing_gateway(first, server) as late:
            await late.settled()
            before = num_resets(late)
            await early.gateway.stop(0)
            await until_leader(late)
            await late.until_subscribed()
            await late.talk(113)
            await late.settled()
            assert num_resets(late) == before
            assert sums(late)["num_takeovers"] == 2


async def test_all_gateways_forget_a_restarted_engine(server: Server) -> None:
    async with sharing_gateways(server) as (_, sharing):
        await sharing[0].talk(114)
        await all_settled(*sharing)
        await sharing[0].sims[0].restart(0.0)
        for s in sharing:
            gone = worker_id(s.sims[0])
            await s.until(lambda s=s, gone=gone: s.gateway.index.num_blocks(gone) == 0)  # type: ignore[misc]
        await all_settled(*sharing)
        await sharing[1].talk(115)
        await all_settled(*sharing)


@asynccontextmanager
async def leader_process(
    first: Story, server: Server, index: str = "replicated"
) -> AsyncIterator[GatewayProcess]:
    """A gateway process that leads both workers. A thread starts it, since the engines run in this loop."""
    workers = [flag for sim in first.sims for flag in ("--worker", sim.url)]
    tokenizer = first.gateway.config.tokenizer.path[0]
    flags = ("--tokenizer", tokenizer, "--redis", server.url, "--probe-interval-s", "0.2")
    leader = GatewayProcess(*workers, *flags, "--index", index)
    await asyncio.to_thread(leader.__enter__)
    try:
        await first.until(lambda: metric(leader, "replica_leader") == 2)
        yield leader
    finally:
        if leader.process.poll() is None:
            leader.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(leader.stop)
        log = leader.log()
        leader._log.close()
        assert "Traceback" not in log and " ERROR " not in log, log


def metric(running: GatewayProcess, name: str) -> float:
    lines = [line for line in running.metrics().splitlines() if line.startswith(f"kvgate_{name}{{")]
    return sum(float(line.split()[-1]) for line in lines)


async def test_follower_takes_over_from_a_killed_leader(server: Server) -> None:
    """The next leader replays the events of the meantime, and nothing else."""
    async with (
        story() as first,
        leader_process(first, server) as leader,
        sharing_gateway(first, server) as follower,
    ):
        await follower.talk(127)
        await follower.settled()
        before = num_resets(follower)
        leader.process.kill()
        await follower.talk(128, 2, 2)
        await until_leader(follower)
        await follower.settled()
        assert num_resets(follower) == before
        assert sums(follower) == {
            "num_takeovers": 2,
            "num_fenced": 0,
            "num_rewrites": 0,
            "num_resyncs": 0,
        }


async def test_leader_stopped_past_its_lease_writes_nothing(server: Server) -> None:
    async with (
        story() as first,
        leader_process(first, server) as leader,
        sharing_gateway(first, server) as follower,
    ):
        await follower.talk(129)
        await follower.settled()
        leader.process.send_signal(signal.SIGSTOP)
        await follower.talk(130, 2, 2)  # events that it finds in its sockets later, and wants to write
        await until_leader(follower)
        await follower.settled()
        written = {feed._log.keys.log: last_id(server, feed._log.keys.log) for feed in feeds(follower)}
        leader.process.send_signal(signal.SIGCONT)
        await follower.until(lambda: metric(leader, "replica_leader") == 0)
        assert {key: last_id(server, key) for key in written} == written
        assert sums(follower)["num_rewrites"] == 0
        await follower.talk(131)
        await follower.settled()
        blocks = sum([len(await follower.cached_blocks(sim)) for sim in follower.sims])
        await follower.until(lambda: metric(leader, "index_blocks") == blocks)
        assert num_led(follower) == 2


async def test_gateways_with_different_redis_prefixes_share_nothing(server: Server) -> None:
    async with sharing_gateways(server, 1) as (first, (leader,)):
        config = replaced(leader.gateway.config, redis_prefix="other")
        gateway = Gateway(config)
        await gateway.start()
        try:
            other = Story(gateway, first.sims, first.session)
            await until_leader(other)
            await other.talk(126)
            await all_settled(leader, other)
            assert num_led(leader) == 2
        finally:
            await gateway.stop()
