"""Gateways with `--index redis` before simulated engines.

The tree in a real Redis has exactly the blocks that the engines have cached, whichever gateway leads, and
each gateway routes by it without a copy.
"""

import asyncio
import signal

import pytest

from gateway import cli
from gateway.commands.index import run
from gateway.core.decision import Decision
from gateway.core.event_stream import StreamState
from tests.support.redis_servers import Server, redis_server, server
from tests.support.stories.fleet_story import fleet_story
from tests.support.stories.sharing_gateways import (
    LASTING,
    feeds,
    metric,
    num_led,
    sums,
    until_leader,
)
from tests.support.stories.tree_story import TreeStory, tree_gateway, tree_gateways, tree_leader_process

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process


async def test_follower_finds_blocks_cached_through_the_leader(server: Server) -> None:
    async with tree_gateways(server, pace=LASTING) as (_, (leader, follower)):
        assert (num_led(leader), num_led(follower)) == (2, 0)
        await leader.talk(200)
        for s in (leader, follower):
            await s.settled()
        assert (leader.num_local > 50, follower.num_local) == (True, 0)
        body = {"model": "m", "messages": [{"role": "user", "content": "Now and then. " * 40}]}
        sent = await leader.chat(body | {"max_tokens": 2})
        await leader.settled()
        decisions: list[Decision] = []
        add, before = follower.gateway.parts.routing.records.add, follower.num_lookups
        follower.gateway.parts.routing.records.add = lambda decision, request_id=b"": (
            decisions.append(decision),
            add(decision, request_id),
        )[1]  # type: ignore[method-assign]
        found = await follower.chat(body | {"max_tokens": 2})
        assert found["worker"] == sent["worker"]
        assert decisions[0].confirmed_tokens > 100
        assert follower.num_lookups == before + 1
        assert await verify_status(leader) == await verify_status(follower) == 0
        assert sum(follower.failed.values()) == 0


async def verify_status(s: TreeStory) -> int:
    """Exit status of `kvgate index verify`, which compares the tree with the gateway's index."""
    gateway = s.gateway
    flags = ("--redis", gateway.config.redis.url, "--gateway", f"http://127.0.0.1:{gateway.admin_port}")
    return await run(cli._parser().parse_args(["index", "verify", *flags]), gateway.config)


async def test_follower_takes_over_from_a_killed_leader(server: Server) -> None:
    """The follower continues after the last batch, by the engines' short buffers; the tree stays exact."""
    sims = fleet_story(replay_buffer=40)
    async with (
        sims as first,
        tree_leader_process(first, server) as leader,
        tree_gateway(first, server) as follower,
    ):
        await follower.talk(210)
        await follower.settled()
        leader.process.kill()
        await follower.talk(211, 2, 2)
        await until_leader(follower)
        await follower.settled()
        assert sums(follower)["num_takeovers"] == 2
        assert follower.num_local > 0
        await follower.talk(212)
        await follower.settled()


async def test_leader_stopped_past_its_lease_writes_nothing(server: Server) -> None:
    async with (
        fleet_story() as first,
        tree_leader_process(first, server) as leader,
        tree_gateway(first, server, pace=LASTING) as follower,
    ):
        await follower.talk(220)
        await follower.settled()
        leader.process.send_signal(signal.SIGSTOP)
        await follower.talk(221, 2, 2)  # events that it finds in its sockets later, and wants to write
        await until_leader(follower)
        await follower.settled()
        before = fences(server, follower)
        leader.process.send_signal(signal.SIGCONT)
        await follower.until(lambda: metric(leader, "replica_leader") == 0)
        await follower.until(lambda: metric(leader, "index_blocks") == 0)
        assert fences(server, follower) == before
        await follower.talk(222)
        await follower.settled()
        assert num_led(follower) == 2


def fences(server: Server, s: TreeStory) -> dict[bytes, bytes]:
    """Fence and slots under which the tree lists each worker."""
    found = server.ask("HGETALL", f"kvgate:{{{s.root():016x}}}:o")
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {name: value[:8] + value[17:] for name, value in pairs}


def are_catching_up(follower: TreeStory) -> bool:
    """Streams that another gateway led, as far as this one knows; a leader goes on reading without Redis."""
    followed = [feed for feed in feeds(follower) if feed.leader is None]
    return all(feed.stream.state is StreamState.CATCHING_UP for feed in followed)


async def test_lookups_fail_only_while_redis_is_paused(server: Server) -> None:
    """Each gateway decides by its own knowledge meanwhile, and by the tree afterwards."""
    async with tree_gateways(server) as (_, (leader, follower)):
        await leader.talk(230)
        await follower.settled()
        with server.paused():
            await asyncio.gather(leader.talk(231, 3, 2), follower.talk(232, 3, 2))
            await follower.until(lambda: follower.failed["away"] > 0)
            await follower.until(lambda: are_catching_up(follower))
        await follower.until(lambda: num_led(leader) + num_led(follower) == 2)
        for s in (leader, follower):
            await s.settled()
        before = dict(follower.failed)
        await follower.talk(233)
        await follower.settled()
        assert follower.failed == before


async def test_leader_writes_the_tree_again_after_redis_is_emptied(server: Server) -> None:
    """The leader alone knows all blocks and writes them again; replay buffers reach back two batches."""
    async with tree_gateways(server, pace=LASTING, replay_buffer=2) as (_, (leader, follower)):
        await follower.talk(240)
        await follower.settled()
        server.ask("FLUSHALL")
        for s in (leader, follower):
            await s.settled()
        await follower.talk(241)
        await follower.settled()
        assert (num_led(leader), num_led(follower)) == (2, 0)
        assert [feed.stream.counts.num_resets for feed in feeds(leader)] == [1, 1]


async def test_tree_forgets_a_restarted_engine(server: Server) -> None:
    async with tree_gateways(server, pace=LASTING) as (_, (leader, follower)):
        await follower.talk(250)
        await follower.settled()
        await follower.sims[0].restart(0.0)
        await follower.settled()
        assert await follower.tree_blocks(follower.sims[0]) == set()
        await leader.talk(251)
        for s in (leader, follower):
            await s.settled()
