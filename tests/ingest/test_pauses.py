"""Pauses grow with each cut, and are short again after a calm period."""

from gateway.ingest.pauses import CALM_S, Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    pauses = Backoff(first_s=10.0, longest_s=60.0)
    assert [pauses.next(float(now)) for now in range(5)] == [10.0, 20.0, 40.0, 60.0, 60.0]
    assert repr(pauses) == "Backoff(next=60 s)"


def test_after_a_calm_period_the_first_pause_comes_again() -> None:
    pauses = Backoff(first_s=10.0)
    assert [pauses.next(0.0), pauses.next(CALM_S), pauses.next(2 * CALM_S + 1)] == [10.0, 20.0, 10.0]
