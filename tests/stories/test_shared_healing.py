"""Gateways that share a real Redis, before simulated engines that were warm before them and whose buffers do
not reach back: what one of them learns by its requests all know, and nothing false stays when it goes.
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
from gateway.replication.session import ReplicaTimes
from loadtest.bench_heal import ask, known
from loadtest.workloads.conversations import Conversations
from tests.redis.serving import Server, redis_server, server
from tests.stories.test_fleet import DEADLINE_S, Story, story, worker_id
from tests.stories.test_replica import LASTING, Pace, beside, feeds, holds, num_held

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

CANNOT_REPORT: dict[str, Any] = {"event_wire": "array"}
"""An engine that announces no hit: answers prove, and what is stored behind is placed."""
HOT: dict[str, Any] = next(iter(Conversations("m", 77, turn_chars=600).turns(1))) | {"max_tokens": 4}
ALONE = Pace(
    ReplicaTimes(
        lease_s=60, renew_s=0.1, ask_s=0.1, grace_s=20, direct_after_s=0.4, retry_s=0.05, pause_s=0.01
    ),
    10,
)
"""Who holds a lease keeps it; who follows soon reads for itself where Redis is away."""


@asynccontextmanager
async def warm(
    server: Server, *, keep_s: float = 60.0, pace: Pace = LASTING, **flags: Any
) -> AsyncIterator[tuple[Story, Story, Story]]:
    """Two gateways that come late, of which one holds both workers' leases. Both workers have HOT."""
    async with story(replay_buffer=2, **flags) as first:
        if not flags.get("replay", True):
            await first.heard()
        for sim in first.sims:
            await ask(first.session, sim.url, HOT)
        await first.talk(30)
        await first.settled()
        async with beside(first, server, pace, events_assumed_keep_s=keep_s) as reads:
            await holds(reads)
            await blind(reads)
            async with beside(first, server, pace, events_assumed_keep_s=keep_s) as follows:
                await blind(follows)
                yield first, reads, follows


async def blind(told: Story) -> None:
    await told.until(lambda: told.states() == {StreamState.BLIND})


async def until_true(first: Story, told: Story) -> None:
    """Until it credits nothing that the engines do not hold."""
    async with asyncio.timeout(DEADLINE_S):
        for sim in first.sims:
            while not credited(told, sim) <= await first.held(sim):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def credited(told: Story, sim: Sim) -> set[int]:
    return set(told.gateway.index.blocks(worker_id(sim)))


async def agree(reads: Story, follows: Story) -> None:
    """All that is known of a worker both know."""
    for sim in reads.sims:
        await reads.until(lambda sim=sim: credited(reads, sim) == credited(follows, sim))  # type: ignore[misc]


async def learn(reads: Story, follows: Story) -> None:
    """What was stored behind a proven prefix is placed too, before anything else is done."""
    await reads.chat(HOT)
    await asyncio.sleep(2 * SETTLE_S)
    await reads.until(
        lambda: not any(recovery._awaiting for _, recovery in reads.gateway.recovery_observer.items())
    )
    await agree(reads, follows)


def num_proven(told: Story) -> int:
    return sum(len(recovery.proofs) for _, recovery in told.gateway.recovery_observer.items())


@pytest.mark.parametrize("flags", [{}, {"hash": "bytes"}, {"kv_blocks": 80}, CANNOT_REPORT])
async def test_what_one_learns_all_know(server: Server, flags: dict[str, Any]) -> None:
    async with warm(server, **flags) as (first, reads, follows):
        before = {sim.url: credited(follows, sim) for sim in first.sims}
        for _ in range(2):
            await reads.talk(30, num_turns=5)
        await reads.credits_nothing_wrong()
        await agree(reads, follows)
        for sim in first.sims:
            held = await first.held(sim)
            assert len(credited(follows, sim) & held) > max(len(held) // 2, len(before[sim.url] & held))
        assert all(feed.recovery for feed in feeds(reads))  # and so in its /admin/workers
        assert not any(feed.recovery for feed in feeds(follows)) and not list(
            follows.gateway.recovery_observer.items()
        )
        await reads.emptied()
        await follows.settled()


@pytest.mark.parametrize("flags", [{}, CANNOT_REPORT, {"replay": False}])
async def test_a_hot_prefix_is_known_to_all_after_two_requests(server: Server, flags: dict[str, Any]) -> None:
    async with warm(server, **flags) as (first, reads, follows):
        for sim in first.sims:
            assert known(reads.gateway, worker_id(sim), HOT) == 0
        for _ in range(2):
            answer = await reads.chat(HOT)
            await asyncio.sleep(2 * SETTLE_S)
        worker, cached = WorkerId(answer["worker"]), answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        await follows.until(lambda: known(follows.gateway, worker, HOT) >= cached // 16)
        await agree(reads, follows)
        await until_true(first, follows)


async def test_what_is_evicted_is_gone_for_all(server: Server) -> None:
    """Announced under the engine's names, and so found by what it removes."""
    async with warm(server, kv_blocks=80, keep_s=1.0) as (first, reads, follows):
        await reads.talk(30)
        await reads.credits_nothing_wrong()
        learnt = [reads.named(sim) for sim in first.sims]
        assert all(learnt)
        await reads.talk(99)
        await until_true(first, follows)
        await agree(reads, follows)
        assert any(blocks - credited(follows, sim) for blocks, sim in zip(learnt, first.sims, strict=True))


async def test_what_was_proven_ends_for_all(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT, keep_s=1.0) as (first, reads, follows):
        await reads.talk(30)
        await reads.until(lambda: num_proven(reads) == 0)
        await reads.credits_nothing_wrong()
        await agree(reads, follows)
        await until_true(first, follows)


async def test_who_reads_goes_and_nothing_is_believed_that_nobody_can_end(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT) as (first, reads, follows):
        await learn(reads, follows)
        assert num_proven(reads) > 0
        named = [reads.named(sim) for sim in first.sims]
        await reads.gateway.stop(0)
        await holds(follows)
        await follows.until(lambda: [credited(follows, sim) for sim in first.sims] == named)
        assert not list(reads.gateway.recovery_observer.items())
        await blind(follows)
        await follows.chat(HOT)  # who holds them now learns
        assert num_proven(follows) > 0
        await follows.talk(30, num_turns=5)
        await follows.credits_nothing_wrong()
        await follows.emptied()


async def test_without_replays_whoever_reads_next_begins_with_nothing(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT, replay=False) as (first, reads, follows):
        await learn(reads, follows)
        assert num_proven(reads) > 0
        await reads.gateway.stop(0)
        await holds(follows)
        await follows.until(lambda: not any(credited(follows, sim) for sim in first.sims))
        await blind(follows)
        await follows.chat(HOT)
        assert num_proven(follows) > 0


async def test_without_redis_nobody_believes_what_another_proved(server: Server) -> None:
    async with warm(server, **CANNOT_REPORT, pace=ALONE) as (first, reads, follows):
        await learn(reads, follows)
        assert num_proven(reads) > 0
        server.kill()
        await follows.until(lambda: all(feed._direct for feed in feeds(follows)))
        await follows.until(lambda: all(credited(follows, sim) == reads.named(sim) for sim in first.sims))
        assert (num_held(reads), num_proven(follows)) == (2, 0)
        assert all(feed.recovery for feed in feeds(follows))
        for told in (follows, reads):
            await told.chat(HOT)
            await told.chat(HOT)
        assert num_proven(reads) > 0 and num_proven(follows) > 0  # each heals by itself
        await follows.credits_nothing_wrong()
