"""A day of requests: its swing, and its bursts."""

import random

import pytest

from loadtest.workloads import day as module
from loadtest.workloads.day import RISE_S, SWING, day, rates


def test_rate_swings_from_the_quietest_moment_to_the_busiest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BURSTS_PER_HOUR", 1e-9)
    rate_at = rates(10.0, 1000.0, random.Random(1))
    assert [rate_at(now) for now in (0.0, 500.0, 1000.0)] == pytest.approx(
        [10 * (1 - SWING), 10 * (1 + SWING), 10 * (1 - SWING)]
    )


def test_bursts_come_and_go_within_a_minute() -> None:
    seconds = 86_400.0
    rate_at, quiet = rates(1.0, seconds, random.Random(1)), 1.0 - SWING
    times = [number * 5.0 for number in range(int(seconds / 5))]
    found = [rate_at(now) for now in times]
    assert max(found) > 2.0 and min(found) >= quiet - 1e-9
    steepest = max(abs(b - a) for a, b in zip(found, found[1:], strict=False))
    assert steepest <= 2 * (1 + SWING) * 1.5 * 5.0 / RISE_S


def test_requests_are_in_order_and_share_prefixes() -> None:
    jobs = list(day(1, rate=5.0, seconds=300.0))
    assert [job.at for job in jobs] == sorted(job.at for job in jobs) and len(jobs) > 100
    firsts = [job.tokens()[0] for job in jobs]
    assert len(set(firsts)) < len(firsts) / 4
    assert jobs[0].tokens() == next(day(1, rate=5.0, seconds=300.0)).tokens()
