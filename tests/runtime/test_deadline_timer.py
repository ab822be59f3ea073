from typing import Any, cast

from gateway.runtime.deadline_timer import LazyTimer
from tests.support.transports import FakeLoop


class TimerWorld:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.num_due = 0
        self.timer = LazyTimer(cast(Any, self.loop), self.due)

    def due(self) -> None:
        self.num_due += 1


def test_a_postponed_deadline_costs_no_new_timer() -> None:
    world = TimerWorld()
    for _ in range(5):
        world.timer.set(10)
        world.loop.advance(1)
    assert len(world.loop.timers) == 1
    world.loop.advance(8.9)
    assert world.num_due == 0
    world.loop.advance(0.2)
    assert world.num_due == 1
    assert not world.loop.timers


def test_an_earlier_deadline_counts_at_once() -> None:
    world = TimerWorld()
    world.timer.set(60)
    world.timer.set(2)
    world.loop.advance(2.1)
    assert world.num_due == 1


def test_a_timer_without_a_deadline_or_stopped_never_fires() -> None:
    world = TimerWorld()
    world.timer.set(1)
    world.timer.set(0)
    assert repr(world.timer) == "LazyTimer(none)"
    world.loop.advance(5)
    world.timer.set(1)
    world.timer.close()
    world.loop.advance(5)
    assert world.num_due == 0
