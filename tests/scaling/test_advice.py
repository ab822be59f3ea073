"""Advice from the state of a group."""

import math
from dataclasses import replace

import pytest

from gateway.core.speed import Speed
from gateway.core.worker import Role, WorkerId
from gateway.scaling.advice import DRAIN_S, MOST_STEP, GroupState, WorkerState, advise, mean_speed
from gateway.scaling.capacity import Mix, Objectives, sustainable_rate, workers_needed
from gateway.scaling.history import Counts, TrafficWindow

SPEED = Speed(start_s=0.02, token_s=1e-4, step_s=0.02, step_seq_s=1e-4, harm_s=1e-4)
MIX = Mix(1000.0, 200.0)
IN_TIME = Objectives(2.0)
RATE = sustainable_rate(SPEED, MIX, IN_TIME)


def worker(name: str, *, is_open: bool = True, **more: int | None) -> WorkerState:
    return WorkerState(WorkerId(name), is_open, SPEED, **more)  # type: ignore[arg-type]


def state(
    *workers: WorkerState,
    burst: float = 0.0,
    minute: float = 0.0,
    mix: Mix | None = MIX,
    num_queued: int = 0,
    queued_tokens: int = 0,
) -> GroupState:
    """A group with so many requests per second in each window."""
    return GroupState(
        "llama",
        Role.BOTH,
        workers,
        TrafficWindow(15.0, Counts(requests=15 * burst)),
        TrafficWindow(60.0, Counts(requests=60 * minute)),
        TrafficWindow(300.0, Counts(in_time=90, late=10)),
        mix,
        SPEED,
        num_queued,
        queued_tokens,
    )


def test_workers_needed_are_demand_over_what_one_can_serve() -> None:
    found = advise(state(worker("a"), worker("b"), burst=3 * RATE, minute=3 * RATE), IN_TIME)
    needed = workers_needed(SPEED, MIX, IN_TIME, 3 * RATE)
    assert found.needed == pytest.approx(needed) and 2.0 < needed <= 3.0
    assert found.utilization == pytest.approx(needed / 2)
    assert found.worker_requests_per_s == pytest.approx(3 * RATE / needed)
    assert found.low < needed < found.high
    assert found.attainment == 0.9 and found.is_reachable


def test_interval_narrows_with_more_requests() -> None:
    few, many = (advise(state(minute=rate), IN_TIME) for rate in (0.5, 500.0))
    assert (few.high - few.low) / few.needed > 10 * (many.high - many.low) / many.needed


def test_burst_that_is_certain_counts_at_once() -> None:
    assert advise(state(burst=50.0, minute=20.0), IN_TIME).requests_per_s > 40.0


def test_burst_of_few_requests_is_noise() -> None:
    assert advise(state(burst=0.2, minute=0.1), IN_TIME).requests_per_s == pytest.approx(0.1)


def test_what_waits_needs_workers_until_it_is_computed() -> None:
    steady = advise(state(worker("a"), minute=RATE), IN_TIME)
    behind = advise(state(worker("a", booked_tokens=301_000), minute=RATE), IN_TIME)
    assert behind.lasting == pytest.approx(steady.needed)
    assert behind.needed - steady.needed == pytest.approx(300_000 * 1e-4 / DRAIN_S)
    assert behind.backlog_tokens == 301_000 and behind.backlog_s == pytest.approx(30.1)


def _late(*, late: float, waiting: float, is_settled: bool = True) -> GroupState:
    """A small demand at four workers, with so many late ones among twenty first tokens."""
    found = state(*map(worker, "abcd"), minute=RATE)
    counts = Counts(in_time=20 - late, late=late, num_running=60.0, num_waiting=waiting)
    return replace(found, burst=TrafficWindow(15.0, counts), is_settled=is_settled)


def test_fleet_that_is_late_while_requests_wait_in_engines_is_too_small() -> None:
    assert advise(_late(late=6, waiting=12), IN_TIME).needed == pytest.approx(4 * 1.2)
    assert advise(_late(late=6, waiting=600), IN_TIME).needed == pytest.approx(4 * (1 + MOST_STEP))


@pytest.mark.parametrize(
    "seen",
    [_late(late=4, waiting=12), _late(late=6, waiting=12, is_settled=False), _late(late=6, waiting=5)],
    ids=["in_time", "joined", "no_queue"],
)
def test_fleet_that_is_in_time_or_has_just_grown_has_shown_nothing(seen: GroupState) -> None:
    assert advise(seen, IN_TIME).needed < 2.0


def test_ttft_is_that_at_the_end_of_the_queue() -> None:
    found = advise(state(worker("a", booked_tokens=10_000), worker("b"), queued_tokens=20_000), IN_TIME)
    assert found.ttft_s == pytest.approx(20_000 * 1e-4 / 2 + 0.02 + 1000 * 1e-4)  # the queue, then `b`


def test_fleet_of_zero_has_no_ttft_and_needs_workers() -> None:
    found = advise(state(minute=RATE, queued_tokens=500), IN_TIME)
    assert found.num_up == 0 and found.ttft_s is found.backlog_s is found.utilization is None
    assert found.needed > 1.0 and found.remove is None


def test_without_requests_nothing_is_needed() -> None:
    found = advise(state(worker("a"), mix=None), IN_TIME)
    assert found.needed == found.low == found.high == 0.0


def test_worker_that_alone_caches_least_is_removed_first() -> None:
    workers = (
        worker("a", unique_cached_tokens=500),
        worker("b"),
        worker("c", unique_cached_tokens=20),
        worker("d", is_open=False, unique_cached_tokens=0),
    )
    found = advise(state(*workers), IN_TIME)
    assert [each.worker for each in found.removals] == ["c", "a", "b"] and found.remove == "c"


def test_mean_speed_is_field_by_field() -> None:
    slow = WorkerState(WorkerId("s"), True, Speed(token_s=3e-4, step_s=0.04))
    mean = mean_speed([WorkerState(WorkerId("f"), True, Speed(token_s=1e-4, step_s=0.02)), slow])
    assert mean.token_s == pytest.approx(2e-4) and mean.step_s == pytest.approx(0.03)
    assert mean.max_running == math.inf


def test_cache_that_fills_first_limits_what_runs_at_once() -> None:
    limited = WorkerState(WorkerId("l"), True, Speed(max_running=64.0))
    assert mean_speed([limited], 40.5).max_running == 40.5
    assert mean_speed([limited], 400.0).max_running == 64.0
