"""The loop's lag, with a clock moved by hand."""

import pytest

from gateway.lag import INTERVAL_S, Lag
from gateway.metrics import Pauses
from tests.transports import FakeLoop


def test_what_came_late_is_told_and_what_was_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses = FakeLoop.install(monkeypatch), Pauses()
    held_s = 0.0
    lag = Lag(pauses, clock=lambda: loop.time() + held_s)
    lag.start()
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.0)
    held_s = 0.04  # somebody held the loop: the next look comes that much later than it was due
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.04)
    loop.advance(INTERVAL_S)
    assert pauses.take_worst_s() == pytest.approx(0.0)
    assert sum(pauses.counts) == 3


def test_a_stopped_one_looks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses = FakeLoop.install(monkeypatch), Pauses()
    lag = Lag(pauses, clock=loop.time)
    lag.start()
    lag.stop()
    lag.stop()  # a second time does nothing
    loop.advance(1)
    assert sum(pauses.counts) == 0
