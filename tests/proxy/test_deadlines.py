import asyncio
from typing import cast

import pytest

from gateway.config.proxy import ProxySection
from gateway.proxy.deadlines import Deadlines, is_total_over, time_left
from tests.support.transports import FakeLoop


def timeouts(first_byte_s: float = 0, idle_s: float = 600, total_s: float = 0) -> ProxySection:
    return ProxySection(first_byte_timeout_s=first_byte_s, idle_timeout_s=idle_s, total_timeout_s=total_s)


@pytest.mark.parametrize(
    ("limits", "has_answer", "left"),
    [
        (timeouts(0, 600, 0), True, 590),
        (timeouts(0, 600, 0), False, 600),
        (timeouts(5, 600, 0), False, -5),
        (timeouts(5, 600, 0), True, 590),
        (timeouts(0, 0, 0), True, None),
        (timeouts(0, 0, 0), False, None),
        (timeouts(0, 600, 100), True, 60),
        (timeouts(0, 0, 40), False, 0),
    ],
)
def test_the_nearest_timeout_counts(limits: ProxySection, has_answer: bool, left: float | None) -> None:
    assert time_left(limits, 1040, started=1000, last_activity=1030, has_answer=has_answer) == left


def test_the_total_timeout_is_exceeded_or_not_set() -> None:
    assert is_total_over(timeouts(total_s=10), 1010, 1000)
    assert not is_total_over(timeouts(total_s=10), 1009, 1000)
    assert not is_total_over(timeouts(), 1e9, 0)


def deadlines(limits: ProxySection) -> tuple[Deadlines, FakeLoop, list[float]]:
    loop, late = FakeLoop(), list[float]()
    made = Deadlines(cast(asyncio.AbstractEventLoop, loop))
    made.arm(limits, lambda: late.append(loop.now))
    return made, loop, late


def test_one_timer_serves_activity_that_goes_on() -> None:
    made, loop, late = deadlines(timeouts(idle_s=10))
    made.has_answer = True
    for _ in range(5):
        loop.advance(8)
        made.last_activity = loop.now
        assert len(loop.timers) == 1
    loop.advance(9)
    assert late == []
    loop.advance(1)
    assert late == [loop.now] and not made.is_total_over and loop.timers == []


def test_the_total_timeout_runs_from_the_arrival_whatever_happens() -> None:
    made, loop, late = deadlines(timeouts(idle_s=10, total_s=25))
    made.has_answer = True
    for _ in range(5):
        loop.advance(5)
        made.last_activity = loop.now
    assert late == [loop.now] and made.is_total_over


def test_stopped_deadlines_call_nothing() -> None:
    made, loop, late = deadlines(timeouts(first_byte_s=5))
    made.stop()
    loop.advance(10)
    assert late == []


def test_without_timeouts_there_is_no_timer() -> None:
    assert deadlines(timeouts(idle_s=0))[1].timers == []
