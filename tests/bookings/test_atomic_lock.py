"""Who decides, with a real server: one at a time, and nobody waits for one who died."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.bookings.atomic_lock import DistributedLock
from gateway.bookings.shared_memory import ProcessView, view_alone
from gateway.bookings.sync import SharedBookings
from gateway.core.worker import WorkerId
from gateway.redis.keys import lock_keys
from gateway.runtime.tasks import Tasks
from tests.redis.serving import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process

HOLDER, NUMBER = lock_keys("kvgate")


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is now."""
    for name, value in {"ANSWER_S": 10.0, "WAIT_S": 10.0, "HEAR_S": 10.0, "LEASE_MS": 10_000}.items():
        monkeypatch.setattr(f"gateway.bookings.atomic_lock.{name}", value)


@asynccontextmanager
async def deciding(
    server: Server, num: int = 1
) -> AsyncIterator[tuple[list[DistributedLock], list[ProcessView]]]:
    tasks, all_of_them, places = Tasks(), [], []
    for _ in range(num):
        place = view_alone(server.config(booking="atomic"))
        assert place
        all_of_them.append(SharedBookings(server.options(redis_timeout_s=0.3), place, is_atomic=True))
        places.append(place)
        await all_of_them[-1].start(tasks)
    for each in all_of_them:
        await until(
            lambda each=each: each.remote_hosts.num_gateways == num - 1 and each.publish_connection.is_open
        )  # type: ignore[misc]
    try:
        yield [each.lock for each in all_of_them if each.lock], places
    finally:
        await tasks.stop()
        for each in all_of_them:
            await each.close()


async def test_each_decides_knowing_of_all_decisions_before(server: Server, patient: None) -> None:
    """A place for each of a hundred decisions, and none is taken twice."""
    async with deciding(server, 4) as (turns, places):
        taken: list[str] = []

        def decide(place: ProcessView) -> None:
            first = next(
                name for number in range(100) if not place.ledger.load(name := _name(number)).num_in_flight
            )
            place.ledger.book(first, 1, 1)
            taken.append(first)

        for number in range(100):
            turns[number % 4].enter(lambda place=places[number % 4]: decide(place))  # type: ignore[misc]
            if number % 10 == 9:
                await asyncio.sleep(0.002)
        await until(lambda: len(taken) == 100)
        assert sum(each.num_late + each.num_without for each in turns) == 0
        assert sorted(taken) == sorted(map(_name, range(100)))


async def test_those_who_wait_are_decided_in_one_turn_in_their_order(server: Server, patient: None) -> None:
    async with deciding(server) as ((turns,), _):
        done: list[int] = []
        for number in range(20):
            turns.enter(lambda number=number: done.append(number))  # type: ignore[misc]
        await until(lambda: len(done) == 20)
        assert (done, turns.num_acquired) == (list(range(20)), 1)
        await until(lambda: HOLDER not in server.names())


async def test_a_turn_of_one_who_died_ends_by_itself(server: Server) -> None:
    async with deciding(server) as ((turns,), _):
        server.ask("SET", HOLDER, "dead:1", "PX", "100")
        server.ask("SET", NUMBER, "1")
        done: list[int] = []
        turns.enter(lambda: done.append(1))
        await until(lambda: done)
        assert (turns.num_acquired, turns.num_late, turns.num_without) == (1, 1, 0)  # it never told


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


async def test_without_an_answer_all_decide_at_once_until_there_is_one(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with deciding(server) as ((turns,), _):
        done: list[int] = []
        with server.paused():
            turns.enter(lambda: done.append(1))
            await until(lambda: done)
            for number in range(5):
                turns.enter(lambda: done.append(1))
                assert len(done) == number + 2
        assert (turns.num_acquired, turns.num_without) == (0, 6)
        await until(lambda: "off=False" in repr(turns) and turns._publish_connection.is_open)
        turns.enter(lambda: done.append(1))
        await until(lambda: turns.num_acquired)
        told = [record.message for record in caplog.records if "distributed lock" in record.message]
        assert len(told) == 1 and told[0].startswith("distributed lock unavailable"), told


async def test_one_that_is_held_for_long_is_not_waited_for(server: Server) -> None:
    async with deciding(server) as ((turns,), _):
        server.ask("SET", HOLDER, "slow:1", "PX", "60000")
        done: list[int] = []
        turns.enter(lambda: done.append(1))
        await until(lambda: done)
        assert (turns.num_acquired, turns.num_without) == (0, 1)


async def test_redis_is_emptied(server: Server, patient: None) -> None:
    async with deciding(server, 2) as (turns, _):
        done: list[int] = []
        for number in range(8):
            turns[number % 2].enter(lambda: done.append(1))
            await until(lambda number=number: len(done) == number + 1)  # type: ignore[misc]
            if number == 3:
                server.ask("FLUSHALL")
        assert [each.num_acquired for each in turns] == [4, 4]


async def test_those_who_wait_when_it_ends_are_decided(server: Server) -> None:
    done: list[int] = []
    async with deciding(server) as ((turns,), _):
        turns.enter(lambda: done.append(1))
    assert done == [1]


def _name(number: int) -> WorkerId:
    return WorkerId(f"place{number:02}")
