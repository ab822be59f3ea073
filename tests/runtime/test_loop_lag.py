"""The loop's lag, with a clock moved by hand."""

import pytest

from gateway.observability.metrics import Pauses
from gateway.runtime.loop_lag import INTERVAL_S, Lag
from tests.support.transports import FakeLoop


def test_what_came_late_is_told_and_what_was_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses = FakeLoop.install(monkeypatch), Pauses()
    held_s = 0.0
    lag = Lag(pauses.observe, Pauses().observe, clock=lambda: loop.time() + held_s)
    lag.start()
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.0)
    held_s = 0.04  # somebody held the loop: the next look comes that much later than it was due
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.04)
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.0)
    assert sum(pauses.counts) == 3


@pytest.mark.parametrize(("cpu_s", "told_s"), [(0.001, 0.001), (0.03, 0.03), (0.045, 0.04)])
def test_what_the_loop_computed_meanwhile_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, told_s: float
) -> None:
    """The rest it waited; what it computed before the look was due is not lag."""
    loop, pauses, work = FakeLoop.install(monkeypatch), Pauses(), Pauses()
    held_s = computed_s = 0.0
    lag = Lag(
        pauses.observe, work.observe, clock=lambda: loop.time() + held_s, cpu_clock=lambda: 7 + computed_s
    )
    lag.start()
    held_s, computed_s = 0.04, cpu_s
    loop.advance(INTERVAL_S)
    assert work.take_worst_s() == pytest.approx(told_s)
    loop.advance(INTERVAL_S)
    assert work.take_worst_s() == 0.0


def test_a_stopped_one_looks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses = FakeLoop.install(monkeypatch), Pauses()
    lag = Lag(pauses.observe, pauses.observe, clock=loop.time)
    lag.start()
    lag.stop()
    lag.stop()  # a second time does nothing
    loop.advance(1)
    assert sum(pauses.counts) == 0
