"""Gateways that share a real Redis, before simulated engines.

The leader of a worker reads its events, and every gateway's index has exactly the blocks that the engines
have cached. Failures of Redis itself are in `test_lost_redis.py`.
"""

import signal
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config import replaced
from tests.support.redis_servers import Server, redis_server, server
from tests.support.stories.fleet_story import FleetStory, fleet_story, worker_id
from tests.support.stories.sharing_gateways import (
    all_settled,
    feeds,
    leader_process,
    metric,
    num_led,
    sharing_gateway,
    sharing_gateways,
    sums,
    until_leader,
)

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def last_id(server: Server, key: str) -> str:
    with server.direct() as client:
        ((name, _),) = client.xrevrange(key, count=1)
        return str(name.decode())


def num_resets(s: FleetStory) -> list[int]:
    return [feed.stream.counts.num_resets for feed in feeds(s)]


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
        assert sum(sharing[1].gateway.parts.index.shared.delays_s.counts) > 0  # type: ignore[union-attr]


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


async def test_follower_takes_over_from_a_killed_leader(server: Server) -> None:
    """The next leader replays the events of the meantime, and nothing else."""
    async with (
        fleet_story() as first,
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
        fleet_story() as first,
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
            other = FleetStory(gateway, first.sims, first.session)
            await until_leader(other)
            await other.talk(126)
            await all_settled(leader, other)
            assert num_led(leader) == 2
        finally:
            await gateway.stop()
