"""Failures of a Redis that gateways share: emptied, paused, full, killed, of another version, unreadable.

Requests go on, every index stays exact, and the gateways share it again without a restart.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.replication.redis_link import ReplicaTimes
from gateway.replication.redis_log import WorkerLog
from tests.support.patience import stays
from tests.support.redis_servers import Server, own_server, redis_server, server
from tests.support.stories.fleet_story import FleetStory, fleet_story
from tests.support.stories.sharing_gateways import (
    BRISK,
    EQUAL,
    QUICK,
    Pace,
    all_settled,
    feeds,
    num_led,
    sharing_gateway,
    sharing_gateways,
    sums,
    until_leader,
    until_shared_again,
)

__all__ = ["own_server", "redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

AS_SHIPPED = Pace(ReplicaTimes(), 1.0)


def reads_itself(s: FleetStory) -> bool:
    return all(feed.endpoint.startswith("tcp") for feed in feeds(s))


async def until_direct(s: FleetStory) -> None:
    await s.until(lambda: reads_itself(s))


async def test_leader_writes_its_blocks_again_after_redis_is_emptied(server: Server) -> None:
    async with sharing_gateways(server, replay_buffer=2) as (first, (leader, follower)):
        await leader.talk(116)
        await all_settled(leader, follower)
        server.ask("FLUSHALL")
        await leader.until(lambda: "kvgate:schema" in server.names())
        await follower.talk(117)
        await all_settled(leader, follower)
        assert (num_led(leader), num_led(follower)) == (2, 0)
        async with sharing_gateway(first, server) as late:
            await late.settled()


async def test_follower_reads_events_itself_while_redis_is_paused(server: Server) -> None:
    """The leader reads on, the follower reads the events itself, and then both share Redis again."""
    async with sharing_gateways(server, pace=AS_SHIPPED) as (_, (leader, follower)):
        await leader.talk(118)
        await all_settled(leader, follower)
        end = asyncio.get_running_loop().time() + 10
        with server.paused():
            await leader.talk(119)
            await leader.settled()
            await until_direct(follower)
            await all_settled(leader, follower)
            await follower.talk(120)
            await all_settled(leader, follower)
            await stays(lambda: reads_itself(follower), end - asyncio.get_running_loop().time())
        await until_shared_again(leader, follower)
        await leader.talk(121)
        await all_settled(leader, follower)


async def test_gateway_started_without_redis_leads_when_redis_answers(server: Server) -> None:
    async with fleet_story() as first:
        with server.paused():
            async with AsyncExitStack() as stack:
                s = await stack.enter_async_context(sharing_gateway(first, server, QUICK))
                await s.talk(122)
                await s.settled()
                kept = stack.pop_all()
        async with kept:
            await until_leader(s)
            await s.talk(123)
            await s.settled()


async def test_leader_rewrites_its_snapshot_after_redis_was_out_of_memory(
    server: Server, caplog: Any
) -> None:
    """A leader keeps unwritten data up to a bound; beyond it, the leader writes a new snapshot."""
    async with sharing_gateways(server, pace=BRISK) as (_, (leader, follower)):
        await leader.talk(130)
        await all_settled(leader, follower)
        for feed in feeds(leader):
            assert feed.leader and feed.leader._rank
            feed.leader._rank.journal._max_bytes = 100
        server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            await leader.talk(131)
            await until_direct(follower)
            await all_settled(leader, follower)
            assert leader.gateway.parts.index.shared and follower.gateway.parts.index.shared
            await follower.until(
                lambda: (
                    leader.gateway.parts.index.shared.error_reporter
                    and follower.gateway.parts.index.shared.error_reporter
                )
            )  # type: ignore[union-attr]
            assert caplog.text.count("it is out of memory: raise maxmemory") == 2
        finally:
            server.ask("CONFIG", "SET", "maxmemory", "0")
        await until_shared_again(leader, follower)
        assert num_led(leader) == 2 and sums(leader)["num_rewrites"] > 0
        await follower.talk(132)
        await all_settled(leader, follower)


async def test_leader_writes_its_blocks_again_after_redis_restarts_empty(own_server: Server) -> None:
    """The leader alone knows all blocks, since replay buffers reach back two batches."""
    async with sharing_gateways(own_server, pace=BRISK, replay_buffer=2) as (_, (leader, follower)):
        await leader.talk(133)
        await all_settled(leader, follower)
        own_server.kill()
        await until_direct(follower)
        await follower.talk(134, 2, 1)
        await leader.settled()
        own_server.start()
        await until_shared_again(leader, follower)
        assert num_led(leader) == 2
        await follower.talk(135)
        await all_settled(leader, follower)


async def test_follower_waits_for_the_leader_also_while_its_log_reader_reconnects(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is empty: the leader alone knows all blocks, and the follower must not take its lease."""
    async with sharing_gateways(server, pace=BRISK, replay_buffer=2) as (_, (leader, follower)):
        await leader.talk(138)
        await all_settled(leader, follower)
        theirs, ours = follower.gateway.parts.index.shared, leader.gateway.parts.index.shared
        assert theirs and ours
        asked: list[bool] = []
        may_go_on = asyncio.Event()
        acquire_theirs, acquire_ours = theirs.acquire, ours.acquire

        async def recorded(log: WorkerLog, *, if_known: bool) -> Any:
            asked.append(if_known)
            return await acquire_theirs(log, if_known=if_known)

        async def late(log: WorkerLog, *, if_known: bool) -> Any:
            await may_go_on.wait()
            return await acquire_ours(log, if_known=if_known)

        monkeypatch.setattr(theirs, "acquire", recorded)
        monkeypatch.setattr(ours, "acquire", late)
        with monkeypatch.context() as reconnecting:
            reconnecting.setattr(type(theirs), "is_lost", property(lambda each: each is theirs))
            server.ask("FLUSHALL")
            asked.clear()
            await follower.until(lambda: len(asked) >= 8)
            may_go_on.set()
            await leader.until(lambda: num_led(leader) == 2)
        assert all(asked) and num_led(follower) == 0
        await all_settled(leader, follower)


async def test_gateways_read_events_themselves_while_redis_rejects_their_password(
    server: Server, caplog: Any
) -> None:
    async with sharing_gateways(server, pace=EQUAL) as (_, (leader, follower)):
        await leader.talk(136)
        await all_settled(leader, follower)
        with server.direct() as client:
            client.config_set("requirepass", "secret")
            try:
                client.client_kill_filter(_type="normal")
                await until_direct(follower)
                await follower.talk(137)
                await all_settled(leader, follower)
                assert caplog.text.count("rejects the password or user") == 2  # once at each gateway
            finally:
                client.config_set("requirepass", "")
        await until_shared_again(leader, follower)


async def test_gateways_leave_the_prefix_to_another_version(server: Server, caplog: Any) -> None:
    async with sharing_gateways(server, pace=EQUAL) as (_, (leader, follower)):
        await leader.talk(138)
        await all_settled(leader, follower)
        with server.direct() as client, client.pipeline() as both:
            both.flushall()
            both.set("kvgate:schema", "kvgate:9")
            both.execute()
        await until_direct(follower)
        await follower.talk(139)
        await all_settled(leader, follower)
        assert caplog.text.count("is 'kvgate:9', but this gateway reads and writes 'kvgate:1'") == 2
        assert caplog.text.count("then kvgate index drop --all --redis unix://") == 2
        assert server.names() == {"kvgate:schema"}
        server.ask("DEL", "kvgate:schema")
        await until_shared_again(leader, follower)


def last_entry_is_nonsense(server: Server, base: str) -> None:
    with server.direct() as client:
        ((last, _),) = client.xrevrange(f"{base}:log", count=1)
        epoch, _, number = last.decode().partition("-")
        client.execute_command(
            "XADD", f"{base}:log", f"{epoch}-{int(number) + 1}", "d", b"\xff\xff", "t", "1"
        )  # type: ignore[no-untyped-call]


def log_has_another_type(server: Server, base: str) -> None:
    server.ask("SET", f"{base}:log", "nonsense")


def log_is_missing(server: Server, base: str) -> None:
    server.ask("DEL", f"{base}:log")


def snapshot_is_nonsense(server: Server, base: str) -> None:
    server.ask("DEL", f"{base}:snapshot")
    server.ask("RPUSH", f"{base}:snapshot", b"\xff\xff")


@pytest.mark.parametrize(
    "spoil", [last_entry_is_nonsense, log_has_another_type, log_is_missing, snapshot_is_nonsense]
)
async def test_leader_rewrites_unreadable_data(server: Server, spoil: Any) -> None:
    """The leader rewrites the log without new events from the engines, too."""
    async with sharing_gateways(server, pace=BRISK) as (first, (leader, follower)):
        await leader.talk(124)
        await all_settled(leader, follower)
        base, _ = sorted(key.removesuffix(":log") for key in server.names() if key.endswith(":log"))
        spoil(server, base)
        async with sharing_gateway(first, server, BRISK) as late:
            await all_settled(leader, follower, late)
            await leader.until(lambda: sums(leader)["num_rewrites"] > 0)
            await follower.talk(125)
            await until_shared_again(leader, follower, late)
            assert num_led(leader) == 2
