"""Drain rate of a queue: measured only while something waits, recent seconds weighted most."""

import pytest

from gateway.tenancy.admission.drain_rate import DrainRate


def drained(rate: DrainRate, begin: float, seconds: int, tokens_per_s: int) -> None:
    rate.begin(begin)
    for second in range(1, seconds + 1):
        rate.left(tokens_per_s, begin + second)


def test_the_given_rate_applies_before_observations() -> None:
    rate = DrainRate()
    assert rate.per_s(500.0, 3.0) == 500.0
    rate.begin(3.0)
    rate.left(10_000, 3.1)
    assert rate.per_s(500.0, 3.2) == 500.0
    assert rate.per_s(500.0, 4.0) == pytest.approx(10_000, rel=0.05)


def test_only_time_with_waiting_requests_counts() -> None:
    rate = DrainRate()
    drained(rate, 0.0, 10, 100)
    rate.end(10.0)
    assert rate.per_s(1.0, 1e6) == pytest.approx(100, rel=0.05)
    drained(rate, 1e6, 10, 100)
    assert rate.per_s(1.0, 1e6 + 10) == pytest.approx(100, rel=0.05)


def test_the_rate_follows_changes_and_never_becomes_zero() -> None:
    rate = DrainRate()
    drained(rate, 0.0, 60, 100)
    rate.begin(0.0)
    drained(rate, 60.0, 60, 1000)
    assert 900 < rate.per_s(1.0, 120.0) < 1001
    assert rate.per_s(1.0, 1e5) == 1.0
