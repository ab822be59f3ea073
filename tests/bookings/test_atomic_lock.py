"""Distributed lock on a real Redis server: one gateway decides at a time, and a dead holder delays none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.bookings.atomic_lock import DistributedLock
from gateway.bookings.shared_memory import ProcessView, view_alone
from gateway.bookings.sync import SharedBookings
from gateway.core.worker import WorkerId
from gateway.redis.keys import lock_keys
from gateway.runtime.tasks import Tasks
from tests.support.patience import until
from tests.support.redis_servers import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process

HOLDER, NUMBER = lock_keys("kvgate")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that no slow machine reaches."""
    for name, value in {"ANSWER_S": 10.0, "WAIT_S": 10.0, "HEAR_S": 10.0, "LEASE_MS": 10_000}.items():
        monkeypatch.setattr(f"gateway.bookings.atomic_lock.{name}", value)


@asynccontextmanager
async def deciding(
    server: Server, num: int = 1, *, redis_timeout_s: float = 30.0
) -> AsyncIterator[tuple[list[DistributedLock], list[ProcessView]]]:
    tasks, gateways, views = Tasks(), [], []
    for _ in range(num):
        view = view_alone(server.config(booking="atomic"))
        assert view
        gateways.append(SharedBookings(server.options(redis_timeout_s=redis_timeout_s), view, is_atomic=True))
        views.append(view)
        await gateways[-1].start(tasks)
    for each in gateways:
        await until(
            lambda each=each: each.remote_hosts.num_gateways == num - 1 and each.publish_connection.is_open
        )  # type: ignore[misc]
    try:
        yield [each.lock for each in gateways if each.lock], views
    finally:
        await tasks.stop()
        for each in gateways:
            await each.close()


async def test_each_decision_knows_all_decisions_before_it(server: Server, patient: None) -> None:
    """A free worker for each of a hundred decisions, and none is taken twice."""
    async with deciding(server, 4) as (locks, views):
        taken: list[str] = []

        def decide(view: ProcessView) -> None:
            free = next(
                name for number in range(100) if not view.ledger.load(name := _name(number)).num_in_flight
            )
            view.ledger.book(free, 1, 1)
            taken.append(free)

        for number in range(100):
            locks[number % 4].enter(lambda view=views[number % 4]: decide(view))  # type: ignore[misc]
            if number % 10 == 9:
                await until(lambda number=number: len(taken) >= number // 2)  # type: ignore[misc]
        await until(lambda: len(taken) == 100)
        assert sum(each.num_late + each.num_without for each in locks) == 0
        assert sorted(taken) == sorted(map(_name, range(100)))


async def test_waiting_decisions_are_made_in_one_acquisition_in_order(server: Server, patient: None) -> None:
    async with deciding(server) as ((lock,), _):
        done: list[int] = []
        for number in range(20):
            lock.enter(lambda number=number: done.append(number))  # type: ignore[misc]
        await until(lambda: len(done) == 20)
        assert (done, lock.num_acquired) == (list(range(20)), 1)
        await until(lambda: HOLDER not in server.names())


async def test_the_lock_of_a_dead_holder_expires(server: Server, patient: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "gateway.bookings.atomic_lock.HEAR_S", 0.01
    )  # the wait for bookings that never arrive
    server.ask("SET", NUMBER, "7")
    async with deciding(server) as ((lock,), _):
        await until(lambda: lock._last == 7)  # it was read, before the dead holder's number
        server.ask("SET", HOLDER, "dead:8", "PX", "100")
        server.ask("SET", NUMBER, "8")
        done: list[int] = []
        lock.enter(lambda: done.append(1))
        await until(lambda: done)
        assert (lock.num_acquired, lock.num_late, lock.num_without) == (1, 1, 0)


async def test_bookings_of_acquisitions_before_a_gateways_start_are_not_waited_for(
    server: Server, patient: None
) -> None:
    server.ask("SET", NUMBER, "7")
    async with deciding(server, 2) as (locks, _):
        done: list[int] = []
        for lock in locks:
            await until(lambda lock=lock: lock._last == 7)  # type: ignore[misc]
        for lock in locks:
            lock.enter(lambda: done.append(1))
        await until(lambda: len(done) == 2)
        assert [each.num_late for each in locks] == [0, 0]


async def test_without_redis_all_decide_at_once_until_it_answers(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with deciding(server, redis_timeout_s=0.3) as ((lock,), _):
        done: list[int] = []
        with server.paused():
            lock.enter(lambda: done.append(1))
            await until(lambda: done)
            for number in range(5):
                lock.enter(lambda: done.append(1))
                assert len(done) == number + 2
        assert (lock.num_acquired, lock.num_without) == (0, 6)
        await until(lambda: "off=False" in repr(lock) and lock._publish_connection.is_open)
        lock.enter(lambda: done.append(1))
        await until(lambda: lock.num_acquired)
        warnings = [record.message for record in caplog.records if "distributed lock" in record.message]
        assert len(warnings) == 1 and warnings[0].startswith("distributed lock unavailable"), warnings


async def test_a_lock_held_for_long_is_not_waited_for(server: Server) -> None:
    async with deciding(server) as ((lock,), _):
        server.ask("SET", HOLDER, "slow:1", "PX", "60000")
        done: list[int] = []
        lock.enter(lambda: done.append(1))
        await until(lambda: done)
        assert (lock.num_acquired, lock.num_without) == (0, 1)


async def test_acquisitions_go_on_after_redis_was_emptied(server: Server, patient: None) -> None:
    async with deciding(server, 2) as (locks, _):
        done: list[int] = []
        for number in range(8):
            locks[number % 2].enter(lambda: done.append(1))
            await until(lambda number=number: len(done) == number + 1)  # type: ignore[misc]
            if number == 3:
                server.ask("FLUSHALL")
        assert [each.num_acquired for each in locks] == [4, 4]


async def test_waiting_decisions_are_made_when_the_gateway_closes(server: Server) -> None:
    done: list[int] = []
    async with deciding(server) as ((lock,), _):
        lock.enter(lambda: done.append(1))
    assert done == [1]


def _name(number: int) -> WorkerId:
    return WorkerId(f"place{number:02}")
