"""Deadlines follow the machine, and waits keep them."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support import patience as module
from tests.support.patience import Deadline, lengthen_limits, measured, patience, stays, until, wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds of a clock that the test sets, on a machine that is twice as slow as an idle one."""
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "SLOWNESS", 2.0)
    monkeypatch.setattr(module, "measured", lambda: 2.0)
    yield now


@pytest.mark.parametrize("work_s, expected", [(0.001, 1.0), (0.03, 3.0), (9.0, module.MOST)])
def test_slowness_is_the_time_of_the_work_within_bounds(
    work_s: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_PATIENCE", raising=False)
    monkeypatch.setattr(module, "WORK_S", 0.01)
    monkeypatch.setattr(module, "perf_counter", count(0.0, work_s).__next__)
    assert measured() == pytest.approx(expected)


def test_the_environment_sets_the_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PATIENCE", "10")
    assert measured() == 10.0


def test_a_deadline_is_longer_on_a_slow_machine(clock: list[float]) -> None:
    deadline = Deadline(20)
    assert patience(20) == 40
    clock[0] = 39.0
    assert not deadline.has_passed()
    clock[0] = 41.0
    assert deadline.has_passed()


def test_a_machine_that_has_become_slower_gets_more_time(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = Deadline(20)
    monkeypatch.setattr(module, "measured", lambda: 3.0)
    clock[0] = 41.0
    assert not deadline.has_passed()
    clock[0] = 61.0
    assert deadline.has_passed()


async def test_waits_end_when_the_claim_is_true(clock: list[float]) -> None:
    numbers = count()
    await until(lambda: next(numbers) == 3)

    async def is_late() -> bool:
        return next(numbers) == 9

    await until(is_late)
    assert wait_until(lambda: next(numbers) > 12 and "found", pause_s=0) == "found"


async def test_waits_fail_after_their_deadline(clock: list[float]) -> None:
    def never() -> bool:
        clock[0] += 15
        return False

    with pytest.raises(AssertionError, match="never happened: the end of days"):
        await until(never, "the end of days")
    with pytest.raises(AssertionError, match="never happened: .*test_patience.py:"):
        wait_until(never, pause_s=0)


async def test_a_claim_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="never happened: an answer"):
        await until(asyncio.Event().wait, "an answer", seconds=0.001)


def test_limits_of_tests_are_as_patient(request: pytest.FixtureRequest, clock: list[float]) -> None:
    request.node.add_marker(pytest.mark.timeout(300))
    lengthen_limits([request.node])
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None and limit.args == (600,)


async def test_a_claim_that_becomes_false_ends_the_wait_with_its_name() -> None:
    claims = iter([True, True, False])
    with pytest.raises(AssertionError, match="did not stay true: three"):
        await stays(lambda: next(claims), 1000.0, "three")


async def test_a_claim_that_stays_true_is_asked_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = count(0.0, 1.0), list[int]()
    monkeypatch.setattr(module, "monotonic", clock.__next__)
    await stays(lambda: asked.append(1) or True, 3.0)
    assert len(asked) == 2
