"""Redis is emptied, silent, full, gone, another's, or nonsense, while gateways share it: requests go on,
every index stays the engines' own caches, and all is one again without a restart.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from gateway.replication.session import ReplicaTimes
from tests.redis.serving import Server, redis_server, server, serving
from tests.stories.test_fleet import Story, story
from tests.stories.test_replica import QUICK, Pace, beside, feeds, holds, num_held, settled, several, sums

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

AS_SHIPPED = Pace(ReplicaTimes(), 1.0)
BRISK = Pace(
    ReplicaTimes(
        lease_s=60, renew_s=0.1, ask_s=0.1, grace_s=20, direct_after_s=0.4, retry_s=0.05, pause_s=0.01
    ),
    10,
)
"""Who holds a lease has it for the whole story, and the first claim where it is lost; who follows reads for
itself soon."""
EQUAL = Pace(replace(BRISK.times, grace_s=0.1), 10)
"""Who has the lease in the end does not matter."""


async def reads_for_itself(told: Story) -> None:
    await told.until(lambda: all(feed.endpoint.startswith("tcp") for feed in feeds(told)))


async def are_one_again(*all_of_them: Story) -> None:
    for told in all_of_them:
        await told.until(lambda told=told: not any(feed._direct for feed in feeds(told)))  # type: ignore[misc]
    first = all_of_them[0]
    await first.until(lambda: not any(told.gateway.shared.error_reporter for told in all_of_them))  # type: ignore[union-attr]
    await first.until(lambda: sum(map(num_held, all_of_them)) == len(first.sims))
    await settled(*all_of_them)


async def test_redis_is_emptied(server: Server) -> None:
    async with several(server, replay_buffer=2) as (first, (reads, follows)):
        await reads.talk(116)
        await settled(reads, follows)
        server.ask("FLUSHALL")
        await reads.until(lambda: "kvgate:schema" in server.names())
        await follows.talk(117)
        await settled(reads, follows)
        assert (num_held(reads), num_held(follows)) == (2, 0)
        async with beside(first, server) as late:
            await late.settled()


async def test_redis_is_paused_for_ten_seconds(server: Server) -> None:
    """Who reads reads on; who follows reads for itself; and all is one again."""
    async with several(server, pace=AS_SHIPPED) as (_, (reads, follows)):
        await reads.talk(118)
        await settled(reads, follows)
        end = asyncio.get_running_loop().time() + 10
        with server.paused():
            await reads.talk(119)
            await reads.settled()
            await reads_for_itself(follows)
            await settled(reads, follows)
            await follows.talk(120)
            await settled(reads, follows)
            await asyncio.sleep(end - asyncio.get_running_loop().time())
        await are_one_again(reads, follows)
        await reads.talk(121)
        await settled(reads, follows)


async def test_a_gateway_that_starts_without_redis_and_finds_it(server: Server) -> None:
    async with story() as first:
        with server.paused():
            async with AsyncExitStack() as stack:
                told = await stack.enter_async_context(beside(first, server, QUICK))
                await told.talk(122)
                await told.settled()
                kept = stack.pop_all()
        async with kept:
            await holds(told)
            await told.talk(123)
            await told.settled()


async def test_redis_has_no_memory_left(server: Server, caplog: Any) -> None:
    """What is to be written is kept to a bound; behind that, all is written anew."""
    async with several(server, pace=BRISK) as (_, (reads, follows)):
        await reads.talk(130)
        await settled(reads, follows)
        for feed in feeds(reads):
            assert feed.leader and feed.leader._rank
            feed.leader._rank.journal._max_bytes = 100
        server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            await reads.talk(131)
            await reads_for_itself(follows)
            await settled(reads, follows)
            assert reads.gateway.shared and follows.gateway.shared
            await follows.until(
                lambda: reads.gateway.shared.error_reporter and follows.gateway.shared.error_reporter
            )  # type: ignore[union-attr]
            assert caplog.text.count("it is out of memory: raise maxmemory") == 2
        finally:
            server.ask("CONFIG", "SET", "maxmemory", "0")
        await are_one_again(reads, follows)
        assert num_held(reads) == 2 and sums(reads)["num_rewrites"] > 0
        await follows.talk(132)
        await settled(reads, follows)


@pytest.fixture
def mortal() -> Iterator[Server]:
    with serving() as server:
        yield server


async def test_redis_is_killed_and_comes_back_empty(mortal: Server) -> None:
    """Only who holds the lease knows all of it: the engines' buffers reach back two batches."""
    async with several(mortal, pace=BRISK, replay_buffer=2) as (_, (reads, follows)):
        await reads.talk(133)
        await settled(reads, follows)
        assert mortal.process
        mortal.process.kill()
        mortal.process.wait()
        await reads_for_itself(follows)
        await follows.talk(134, 2, 1)
        await reads.settled()
        mortal.start()
        await are_one_again(reads, follows)
        assert num_held(reads) == 2
        await follows.talk(135)
        await settled(reads, follows)


async def test_the_password_becomes_another(server: Server, caplog: Any) -> None:
    async with several(server, pace=EQUAL) as (_, (reads, follows)):
        await reads.talk(136)
        await settled(reads, follows)
        with server.direct() as client:
            client.config_set("requirepass", "secret")
            try:
                client.client_kill_filter(_type="normal")
                await reads_for_itself(follows)
                await follows.talk(137)
                await settled(reads, follows)
                assert caplog.text.count("rejects the password or user") == 2  # each, once
            finally:
                client.config_set("requirepass", "")
        await are_one_again(reads, follows)


async def test_another_version_takes_the_prefix(server: Server, caplog: Any) -> None:
    async with several(server, pace=EQUAL) as (_, (reads, follows)):
        await reads.talk(138)
        await settled(reads, follows)
        with server.direct() as client, client.pipeline() as both:
            both.flushall()
            both.set("kvgate:schema", "kvgate:9")
            both.execute()
        await reads_for_itself(follows)
        await follows.talk(139)
        await settled(reads, follows)
        assert caplog.text.count("is 'kvgate:9', but this gateway reads and writes 'kvgate:1'") == 2
        assert caplog.text.count("then kvgate index drop --all --redis unix://") == 2
        assert server.names() == {"kvgate:schema"}
        server.ask("DEL", "kvgate:schema")
        await are_one_again(reads, follows)


def last_entry_is_nonsense(server: Server, base: str) -> None:
    with server.direct() as client:
        ((last, _),) = client.xrevrange(f"{base}:log", count=1)
        epoch, _, place = last.decode().partition("-")
        client.execute_command("XADD", f"{base}:log", f"{epoch}-{int(place) + 1}", "d", b"\xff\xff", "t", "1")  # type: ignore[no-untyped-call]


def log_is_none(server: Server, base: str) -> None:
    server.ask("SET", f"{base}:log", "nonsense")


def log_is_cut_off(server: Server, base: str) -> None:
    server.ask("DEL", f"{base}:log")


def snapshot_is_nonsense(server: Server, base: str) -> None:
    server.ask("DEL", f"{base}:snapshot")
    server.ask("RPUSH", f"{base}:snapshot", b"\xff\xff")


@pytest.mark.parametrize("spoil", [last_entry_is_nonsense, log_is_none, log_is_cut_off, snapshot_is_nonsense])
async def test_what_cannot_be_read_is_written_anew(server: Server, spoil: Any) -> None:
    """Also where no engine says anything."""
    async with several(server, pace=BRISK) as (first, (reads, follows)):
        await reads.talk(124)
        await settled(reads, follows)
        base, _ = sorted(key.removesuffix(":log") for key in server.names() if key.endswith(":log"))
        spoil(server, base)
        async with beside(first, server, BRISK) as late:
            await settled(reads, follows, late)
            await reads.until(lambda: sums(reads)["num_rewrites"] > 0)
            await follows.talk(125)
            await are_one_again(reads, follows, late)
            assert num_held(reads) == 2
