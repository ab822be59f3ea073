"""Lease and log on a real server: who may write, writes that are stored once, entries that are kept."""

from collections.abc import AsyncIterator
from time import time_ns

import pytest
from redis.exceptions import OutOfMemoryError

from gateway.core.blocks import root_hash
from gateway.core.worker import WorkerId
from gateway.redis.client import open_client
from gateway.redis.keys import WorkerKeys
from gateway.replication.redis_log import (
    START,
    STATES,
    Lease,
    WorkerLog,
    WriteResult,
    after_id,
    batch_id,
    state_id,
)
from tests.support.patience import until
from tests.support.redis_servers import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

KEYS = WorkerKeys.of("kvgate", root_hash("m"), 16, WorkerId("w:1"))
E = 5


@pytest.fixture
async def logs(server: Server) -> AsyncIterator[list[WorkerLog]]:
    """Logs of two gateways."""
    async with open_client(server.options()) as client:
        yield [WorkerLog(client, KEYS, name, lease_s=60.0) for name in ("a", "b")]


async def leased(log: WorkerLog) -> Lease:
    lease = await log.acquire(if_known=False)
    assert isinstance(lease, Lease)
    return lease


def written(server: Server) -> list[str]:
    with server.direct() as client:
        return [name.decode() for name, _ in client.xrange(KEYS.log)]


async def test_a_lease_has_one_holder(logs: list[WorkerLog], server: Server) -> None:
    a, b = logs
    lease = await leased(a)
    wait_s = await b.acquire(if_known=False)
    assert isinstance(wait_s, float) and 0 < wait_s <= 60
    assert await a.renew(lease) and not await b.renew(Lease(lease.fence, f"{lease.fence}:b"))
    await b.release(Lease(lease.fence, f"{lease.fence}:b"))
    assert await a.renew(lease)
    await a.release(lease)
    assert not await a.renew(lease)
    assert (await leased(b)).fence > lease.fence


async def test_a_lease_with_a_lost_answer_is_acquired_again(logs: list[WorkerLog], server: Server) -> None:
    a, b = logs
    lost = await leased(a)
    again = await leased(a)
    assert again.fence > lost.fence
    assert await a.renew(again) and not await a.renew(lost)
    assert isinstance(await b.acquire(if_known=False), float)


async def test_fences_grow_even_after_redis_was_emptied(logs: list[WorkerLog], server: Server) -> None:
    first = await leased(logs[0])
    await logs[0].release(first)
    second = await leased(logs[0])
    server.ask("FLUSHALL")
    await until(lambda: time_ns() // 1_000_000 > second.fence)  # a fence is a time in ms
    assert first.fence < second.fence < (await leased(logs[0])).fence


async def test_a_lease_expires_by_the_servers_clock(server: Server) -> None:
    async with open_client(server.options()) as client:
        a, b = (WorkerLog(client, KEYS, name, lease_s=0.05) for name in ("a", "b"))
        lease = await leased(a)
        wait_s = await b.acquire(if_known=False)
        assert isinstance(wait_s, float) and wait_s <= 0.05

        async def has_expired() -> bool:
            return isinstance(await b.acquire(if_known=False), Lease)

        await until(has_expired)
        assert not await a.renew(lease)


async def test_a_gateway_without_a_log_waits_for_the_last_leader(logs: list[WorkerLog]) -> None:
    a, b = logs
    assert await b.acquire(if_known=True) is None
    await a.replace(await leased(a), [b"part"], "", (batch_id(E, 0), b"state"))
    assert isinstance(await b.acquire(if_known=True), float)


async def test_a_writer_without_the_lease_is_fenced(logs: list[WorkerLog], server: Server) -> None:
    a, b = logs
    was = await leased(a)
    assert await a.append(was, START, [(batch_id(E, 0), b"0")]) is WriteResult.OK
    await a.release(was)
    assert await a.append(was, batch_id(E, 0), [(batch_id(E, 1), b"1")]) is WriteResult.FENCED
    lease = await leased(b)
    assert await a.append(was, batch_id(E, 0), [(batch_id(E, 1), b"1")]) is WriteResult.FENCED
    assert await a.replace(was, [b"p"], "", (batch_id(E, 2), b"s")) is WriteResult.FENCED
    assert written(server) == [batch_id(E, 0)]
    assert KEYS.snapshot not in server.names() and KEYS.draft not in server.names()
    assert await b.append(lease, batch_id(E, 0), [(batch_id(E, 1), b"1")]) is WriteResult.OK


async def test_a_repeated_write_is_stored_once(logs: list[WorkerLog], server: Server) -> None:
    a, _ = logs
    lease, entries = await leased(a), [(batch_id(E, seq), b"x") for seq in range(3)]
    for _ in range(2):
        assert await a.append(lease, START, entries) is WriteResult.OK
    assert written(server) == [name for name, _ in entries]


async def test_a_log_changed_by_another_writer_is_torn(logs: list[WorkerLog], server: Server) -> None:
    a, _ = logs
    lease = await leased(a)
    assert await a.append(lease, START, [(batch_id(E, 0), b"0")]) is WriteResult.OK
    assert await a.append(lease, START, [(batch_id(E, 1), b"1")]) is WriteResult.TORN
    server.ask("DEL", KEYS.log)
    assert await a.append(lease, batch_id(E, 0), [(batch_id(E, 1), b"1")]) is WriteResult.TORN
    assert written(server) == []


@pytest.mark.parametrize("num_parts", [1, 64, 65, 200])
async def test_a_snapshot_is_read_as_written(logs: list[WorkerLog], num_parts: int) -> None:
    a, b = logs
    parts = [b"%d" % i for i in range(num_parts)]
    assert await a.replace(await leased(a), parts, "", (batch_id(E, 0), b"state")) is WriteResult.OK
    assert await b.snapshot() == parts
    assert [(e.data, e.epoch, e.place) for e in await b.read(START)] == [(b"state", E, STATES)]


async def test_a_snapshot_trims_the_log_behind_it(logs: list[WorkerLog], server: Server) -> None:
    a, b = logs
    lease = await leased(a)
    await a.append(lease, START, [(batch_id(E, seq), b"x") for seq in range(200)])
    assert len(await b.read(START)) == 200
    state = (state_id(batch_id(E, 199), E, 200), b"s")
    assert await a.replace(lease, [b"p"], after_id(E, 150), state) is WriteResult.OK
    assert written(server)[0] == batch_id(E, 149) and written(server)[-1] == state[0]
    assert await b.last_id() == state[0]


async def test_all_keys_of_a_worker_expire_without_a_renewal(logs: list[WorkerLog], server: Server) -> None:
    a, _ = logs
    lease = await leased(a)
    await a.append(lease, START, [(batch_id(E, 0), b"x")])
    await a.replace(lease, [b"p"], batch_id(E, 0), (state_id(batch_id(E, 0), E, 1), b"s"))
    await a.renew(lease)
    assert server.names() == {KEYS.lease, KEYS.fence, KEYS.log, KEYS.snapshot}
    assert all(0 < server.ask("TTL", key) <= 600 for key in server.names())


def test_entry_ids_are_in_the_order_of_updates() -> None:
    first, second = batch_id(E, 0), batch_id(E, 1)
    states = [state_id(START, E, 0), state_id(first, E, 1), second]
    states.insert(2, state_id(states[1], E, 1))
    places = [int(name.partition("-")[2]) for name in states]
    assert places == sorted(set(places))
    assert after_id(0, 0) == START and after_id(E, 1) == first


async def test_a_renewal_returns_the_last_entry(logs: list[WorkerLog], server: Server) -> None:
    a, b = logs
    lease = await leased(a)
    assert await a.renew(lease) == START
    state = state_id(START, E, 0), b"s"
    await a.replace(lease, [b"p"], "", state)
    await a.append(lease, state[0], [(batch_id(E, 0), b"x")])
    assert await a.renew(lease) == batch_id(E, 0)
    await b.drop_snapshot()
    assert await a.renew(lease) not in (None, START, batch_id(E, 0))
    server.ask("SET", KEYS.log, "nonsense")
    assert await a.renew(lease) not in (None, START, batch_id(E, 0))
    assert await a.append(lease, batch_id(E, 0), [(batch_id(E, 1), b"y")]) is WriteResult.TORN
    assert await a.replace(lease, [b"p"], "", state) is WriteResult.OK
    assert await a.renew(lease) == state[0]


async def test_a_lease_is_not_renewed_without_memory(logs: list[WorkerLog], server: Server) -> None:
    a, _ = logs
    lease = await leased(a)
    server.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            await a.renew(lease)
    finally:
        server.ask("CONFIG", "SET", "maxmemory", "0")
    assert await a.renew(lease) == START


async def test_an_unreadable_fence_is_replaced(logs: list[WorkerLog], server: Server) -> None:
    server.ask("SET", KEYS.fence, "nonsense")
    assert (await leased(logs[0])).fence > 1_600_000_000_000


async def test_foreign_entries_of_the_log_are_read_as_empty(logs: list[WorkerLog], server: Server) -> None:
    for number, time in enumerate(("x", "9" * 5000, "-1", ""), 1):
        server.ask("XADD", KEYS.log, f"1-{number}", "t", time)
    assert [(entry.written_us, entry.data) for entry in await logs[0].read(START)] == [(0, b"")] * 4
