"""Entries added to logs, as followers get them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.redis.client import open_client
from gateway.replication import redis_tail as tail_module
from gateway.replication.redis_log import START, LogEntry
from gateway.replication.redis_tail import BLOCK_S, FollowedLog, LogTail
from gateway.runtime.tasks import Tasks
from tests.support.patience import until
from tests.support.redis_servers import Server, redis_server, server, serving

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@asynccontextmanager
async def tailing(server: Server, timeout_s: float = 30.0) -> AsyncIterator[LogTail]:
    tasks = Tasks()
    client = open_client(server.options(redis_timeout_s=timeout_s), max_connections=1, block_s=BLOCK_S)
    tail = LogTail(client)
    tasks.start("tail", tail.run())
    try:
        yield tail
    finally:
        await tasks.stop()
        await client.aclose()


def add(server: Server, key: str, *numbers: int) -> None:
    for number in numbers:
        server.ask("XADD", key, f"1-{number}", "t", "5", "d", str(number))


def taken(followed: FollowedLog) -> list[bytes]:
    entries = [entry.data for entry in followed.entries]
    followed.entries.clear()
    return entries


async def test_each_follower_gets_its_own_entries_from_its_position(server: Server) -> None:
    add(server, "a", 1, 2, 3)
    async with tailing(server) as tail:
        a, b = tail.follow("a", "1-1"), tail.follow("b", START)
        await until(lambda: a.is_live and b.is_live and len(a.entries) == 2)
        assert taken(a) == [b"2", b"3"] and taken(b) == []
        add(server, "b", 7)
        add(server, "a", 4)
        await until(lambda: a.entries and b.entries)
        assert taken(a) == [b"4"] and taken(b) == [b"7"]
        assert a.woken.is_set() and a.after == "1-4"


async def test_an_unfollowed_log_gets_no_entries(server: Server) -> None:
    async with tailing(server) as tail:
        a, again = tail.follow("a", START), tail.follow("a", START)
        tail.unfollow(a)
        add(server, "a", 1)
        await until(lambda: again.entries)
        assert not a.entries
        tail.unfollow(again)
        add(server, "a", 2)
        other = tail.follow("b", START)
        await until(lambda: other.is_live)
        assert taken(again) == [b"1"]


async def test_a_follower_that_takes_no_entries_delays_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MAX_WAITING", 3)
    monkeypatch.setattr(tail_module, "AT_ONCE", 2)
    add(server, "a", *range(1, 20))
    async with tailing(server) as tail:
        a, b = tail.follow("a", START), tail.follow("b", START)
        await until(lambda: len(a.entries) >= 3 and b.is_live)
        add(server, "b", 1)
        await until(lambda: b.entries)
        assert len(a.entries) == 4
        entries = taken(a)
        while len(entries) < 19:
            await until(lambda: a.entries)
            entries += taken(a)
        assert entries == [str(i).encode() for i in range(1, 20)]


async def test_a_lost_connection_is_opened_again(server: Server) -> None:
    async with tailing(server, timeout_s=0.3) as tail:
        a = tail.follow("a", START)
        await until(lambda: a.is_live)
        with server.paused():
            await until(lambda: tail.is_lost)
            assert not a.is_live and tail.num_losses > 0
        add(server, "a", 1)
        await until(lambda: a.is_live and a.entries)
        assert not tail.is_lost


async def test_age_is_by_the_servers_clock(server: Server) -> None:
    client = open_client(server.options(), max_connections=1)
    tail = LogTail(client, clock=lambda: 1000.0)  # decades behind
    await tail._compare_clocks()
    seconds, _ = server.ask("TIME")
    assert tail.age_s(LogEntry("1-1", int(seconds) * 10**6 - 10**6, b"")) < 60
    assert tail.age_s(LogEntry("1-1", (int(seconds) + 60) * 10**6, b"")) == 0
    await client.aclose()


async def test_a_replaced_server_is_noticed(server: Server) -> None:
    with serving() as mortal:
        async with tailing(mortal) as tail:
            followed = tail.follow("a", START)
            await until(lambda: followed.is_live)
            mortal.ask("CLIENT", "KILL", "TYPE", "normal")
            await until(lambda: tail.num_losses == 1 and followed.is_live)
            assert tail.server == 0  # the same server
            mortal.kill()
            mortal.start()
            await until(lambda: followed.is_live and tail.server == 1)
