"""Recovery of BLIND streams at gateways that share a real Redis, started before warm simulated engines.

Replay buffers do not reach back. Followers know the blocks that the leader learns from its requests, and no
false block stays when the leader stops.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engines.sim import Sim
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.blind_recovery import SETTLE_S
from gateway.replication.redis_link import ReplicaTimes
from loadtest.bench_heal import ask, known
from tests.support.patience import until
from tests.support.redis_servers import Server, own_server, redis_server, server
from tests.support.stories.fleet_story import DEADLINE_S, FleetStory, fleet_story, worker_id
from tests.support.stories.sharing_gateways import (
    LASTING,
    Pace,
    feeds,
    num_led,
    sharing_gateway,
    until_leader,
)
from tests.support.texts import conversations

__all__ = ["own_server", "redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

CANNOT_REPORT: dict[str, Any] = {"event_wire": "array"}
"""An engine that announces no hit: answers prove blocks, which locate the blocks stored behind them."""
HOT: dict[str, Any] = next(iter(conversations(77, 600).turns(1))) | {"max_tokens": 4}
ALONE = Pace(
    ReplicaTimes(
        lease_s=60, renew_s=0.1, ask_s=0.1, grace_s=20, direct_after_s=0.4, retry_s=0.05, pause_s=0.01
    ),
    10,
)
"""Leaders keep their leases; followers soon read the events themselves where Redis is away."""


@asynccontextmanager
async def warm(
    server: Server, *, keep_s: float = 60.0, pace: Pace = LASTING, **flags: Any
) -> AsyncIterator[tuple[FleetStory, FleetStory, FleetStory]]:
    """Two gateways started late, the first of which leads both workers. Both workers have cached HOT."""
    async with fleet_story(replay_buffer=2, **flags) as first:
        if not flags.get("replay", True):
            await first.until_subscribed()
        for sim in first.sims:
            await ask(first.session, sim.url, HOT)
        await first.talk(30)
        await first.settled()
        async with sharing_gateway(first, server, pace, events_assumed_keep_s=keep_s) as leader:
            await until_leader(leader)
            await until_blind(leader)
            async with sharing_gateway(first, server, pace, events_assumed_keep_s=keep_s) as follower:
                await until_blind(follower)
                yield first, leader, follower


async def until_blind(s: FleetStory) -> None:
    await s.until(lambda: s.states() == {StreamState.BLIND})


async def until_no_false_block(first: FleetStory, s: FleetStory) -> None:
    """Wait until the gateway credits no worker with a block that its engine has not cached."""
    async with asyncio.timeout(DEADLINE_S):
        for sim in first.sims:

            async def is_true(sim: Sim = sim) -> bool:
                return credited(s, sim) <= await first.cached_blocks(sim)

            await until(is_true)


def credited(s: FleetStory, sim: Sim) -> set[int]:
    return set(s.gateway.index.blocks(worker_id(sim)))


async def until_equal(leader: FleetStory, follower: FleetStory) -> None:
    """Wait until both gateways credit each worker with the same blocks."""
    for sim in leader.sims:
        await leader.until(lambda sim=sim: credited(leader, sim) == credited(follower, sim))  # type: ignore[misc]


async def learn(leader: FleetStory, follower: FleetStory) -> None:
    """Prove HOT by requests, and wait until blocks stored behind it are located too."""
    await until_proven(leader)
    await asyncio.sleep(2 * SETTLE_S)
    await leader.until(
        lambda: (
            not any(
                recovery._awaiting for _, recovery in leader.gateway.parts.streams.recovery_observer.items()
            )
        )
    )
    await until_equal(leader, follower)


def num_proven(s: FleetStory) -> int:
    return sum(len(recovery.proofs) for _, recovery in s.gateway.parts.streams.recovery_observer.items())


async def until_proven(s: FleetStory) -> None:
    """Ask for HOT until a block of it is proven: two answers prove it on an idle machine."""

    async def is_proven() -> bool:
        await s.chat(HOT)
        return num_proven(s) > 0

    await s.until(is_proven)


@pytest.mark.parametrize("flags", [{}, {"hash": "bytes"}, {"kv_blocks": 80}, CANNOT_REPORT])
async def test_follower_knows_the_blocks_that_the_leader_learns(
    server: Server, flags: dict[str, Any]
) -> None:
    async with warm(server, **flags) as (first, leader, follower):
        before = {sim.url: credited(follower, sim) for sim in first.sims}
        for _ in range(2):
            await leader.talk(30, num_turns=5)
        await leader.credits_nothing_wrong()
        await until_equal(leader, follower)
        for sim in first.sims:
            cached = await first.cached_blocks(sim)
            assert len(credited(follower, sim) & cached) > max(
                len(cached) // 2, len(before[sim.url] & cached)
            )
        assert all(feed.recovery for feed in feeds(leader))  # and so in the leader's /admin/workers
        assert not any(feed.recovery for feed in feeds(follower)) and not list(
            follower.gateway.parts.streams.recovery_observer.items()
        )
        await leader.emptied()
        await follower.settled()


@pytest.mark.parametrize("flags", [{}, CANNOT_REPORT, {"replay": False}])
async def test_all_gateways_know_a_hot_prefix_after_two_requests(
    server: Server, flags: dict[str, Any]
) -> None:
    async with warm(server, **flags) as (first, leader, follower):
        for sim in first.sims:
            assert known(leader.gateway, worker_id(sim), HOT) == 0
        for _ in range(2):
            answer = await leader.chat(HOT)
            await asyncio.sleep(2 * SETTLE_S)
        worker, cached = WorkerId(answer["worker"]), answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        await follower.until(lambda: known(follower.gateway, worker, HOT) >= cached // 16)
        await until_equal(leader, follower)
        await until_no_false_block(first, follower)


async def test_all_gateways_forget_evicted_blocks(server: Server) -> None:
    """Announced hits give engine hashes, by which the engine's removals are found."""
    async with warm(server, kv_blocks=80, keep_s=1.0) as (first, leader, follower):
        await leader.talk(30)
        await leader.credits_nothing_wrong()
        learnt = [leader.blocks_by_engine_hash(sim) for sim in first.sims]
        assert all(learnt)
        await leader.talk(99)
        await until_no_false_block(first, follower)
        await until_equal(leader, follower)
        assert any(blocks - credited(follower, sim) for blocks, sim in zip(learnt, first.sims, strict=True))


async def test_proven_blocks_expire_at_all_gateways(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT, keep_s=1.0) as (first, leader, follower):
        await leader.talk(30)
        await leader.until(lambda: num_proven(leader) == 0)
        await leader.credits_nothing_wrong()
        await until_equal(leader, follower)
        await until_no_false_block(first, follower)


async def test_proven_blocks_end_when_their_leader_stops(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT) as (first, leader, follower):
        await learn(leader, follower)
        await until_proven(leader)
        engine_hashed = [leader.blocks_by_engine_hash(sim) for sim in first.sims]
        await leader.gateway.stop(0)
        await until_leader(follower)
        await follower.until(lambda: [credited(follower, sim) for sim in first.sims] == engine_hashed)
        assert not list(leader.gateway.parts.streams.recovery_observer.items())
        await until_blind(follower)
        await until_proven(follower)  # the new leader learns
        await follower.talk(30, num_turns=5)
        await follower.credits_nothing_wrong()
        await follower.emptied()


async def test_next_leader_starts_empty_where_engines_replay_nothing(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT, replay=False) as (first, leader, follower):
        await learn(leader, follower)
        assert num_proven(leader) > 0
        await leader.gateway.stop(0)
        await until_leader(follower)
        await follower.until(lambda: not any(credited(follower, sim) for sim in first.sims))
        await until_blind(follower)
        await until_proven(follower)


async def test_follower_discards_the_leaders_proven_blocks_when_redis_is_killed(own_server: Server) -> None:
    async with warm(own_server, **CANNOT_REPORT, pace=ALONE) as (first, leader, follower):
        await learn(leader, follower)
        assert num_proven(leader) > 0
        own_server.kill()
        await follower.until(lambda: all(feed._direct for feed in feeds(follower)))
        await follower.until(
            lambda: all(credited(follower, sim) == leader.blocks_by_engine_hash(sim) for sim in first.sims)
        )
        assert (num_led(leader), num_proven(follower)) == (2, 0)
        assert all(feed.recovery for feed in feeds(follower))
        for s in (follower, leader):  # each recovers by itself
            await until_proven(s)
        await follower.credits_nothing_wrong()
