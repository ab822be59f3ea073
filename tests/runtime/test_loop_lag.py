"""Lag of the event loop, with a clock moved by hand."""

import pytest

from gateway.observability.metrics import PauseHistogram
from gateway.runtime.loop_lag import INTERVAL_S, LoopLag
from tests.support.transports import FakeLoop


def test_late_and_punctual_wakings_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses = FakeLoop.install(monkeypatch), PauseHistogram()
    held_s = 0.0
    lag = LoopLag(pauses.observe, PauseHistogram().observe, clock=lambda: loop.time() + held_s)
    lag.start()
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.0)
    held_s = 0.04  # a callback blocked the loop: the next waking comes that much later than it was due
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.04)
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.0)
    assert sum(pauses.counts) == 3


@pytest.mark.parametrize(("cpu_s", "expected_s"), [(0.001, 0.001), (0.03, 0.03), (0.045, 0.04)])
def test_computing_time_is_reported_separately(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, expected_s: float
) -> None:
    """The loop waited for the rest; computing before the waking was due is no lag."""
    loop, pauses, work = FakeLoop.install(monkeypatch), PauseHistogram(), PauseHistogram()
    held_s = computed_s = 0.0
    lag = LoopLag(
        pauses.observe, work.observe, clock=lambda: loop.time() + held_s, cpu_clock=lambda: 7 + computed_s
    )
    lag.start()
    held_s, computed_s = 0.04, cpu_s
    loop.advance(INTERVAL_S)
    assert work.take_worst_s() == pytest.approx(expected_s)
    loop.advance(INTERVAL_S)
    assert work.take_worst_s() == 0.0


def test_a_stopped_lag_observes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses = FakeLoop.install(monkeypatch), PauseHistogram()
    lag = LoopLag(pauses.observe, pauses.observe, clock=loop.time)
    lag.start()
    lag.stop()
    lag.stop()  # a second stop does nothing
    loop.advance(1)
    assert sum(pauses.counts) == 0
