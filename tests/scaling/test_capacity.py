"""The rate that workers can serve in time, and the workers that a rate needs."""

import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.speed import TYPICAL, Speed
from gateway.scaling.capacity import (
    LATE,
    OPEN,
    Mix,
    late_share,
    num_running,
    reachable_s,
    sustainable_rate,
    workers_needed,
)

FAST = Speed(start_s=0.02, token_s=1e-4, step_s=0.02, step_seq_s=1e-4, harm_s=1e-4)
MIX = Mix(1000.0, 200.0)

speeds = st.builds(
    Speed,
    start_s=st.floats(0.001, 0.5),
    token_s=st.floats(1e-6, 1e-3),
    seq_s=st.floats(0.0, 1e-6),
    step_s=st.floats(0.001, 0.2),
    step_seq_s=st.floats(0.0, 1e-3),
    harm_s=st.floats(0.0, 1e-3),
    start_seq_s=st.floats(0.0, 1e-3),
    max_running=st.one_of(st.just(math.inf), st.floats(1, 512)),
)
mixes = st.builds(Mix, st.floats(0.0, 1e5), st.floats(1.0, 5e3), st.floats(0.0, 20.0), st.floats(0.0, 0.05))


def test_rate_is_limited_by_prompts_of_a_prefill_worker() -> None:
    rate = sustainable_rate(FAST, Mix(1000.0, 0.0), 1e9)
    assert rate == pytest.approx(9.0, rel=0.01)  # a prompt takes 0.1 s, busy for 90 %


def test_tight_objective_allows_a_lower_rate() -> None:
    rates = [sustainable_rate(FAST, MIX, objective_s) for objective_s in (0.3, 0.5, 1.0, 3.0)]
    assert rates == sorted(rates) and rates[0] < 0.7 * rates[-1]


def test_concurrency_limit_bounds_the_rate() -> None:
    limited = Speed(start_s=0.02, token_s=1e-4, step_s=0.02, max_running=10)
    running = num_running(limited, MIX, sustainable_rate(limited, MIX, 10.0))
    assert running + 1.28 * math.sqrt(2 * running) == pytest.approx(10.0, rel=0.01)


def test_kv_cache_bounds_the_rate() -> None:
    mix = Mix(1000.0, 200.0, kv_share=0.1)
    rate = sustainable_rate(FAST, mix, 10.0)
    running = num_running(FAST, mix, rate)
    assert running + 1.28 * math.sqrt(2 * running) == pytest.approx(1 / 0.1, rel=0.01)


def test_idle_worker_is_late_with_its_longest_prompts() -> None:
    mix = Mix(1000.0, 200.0, spread=1.0)
    longest = math.exp(1.2816 * math.sqrt(math.log(2.0)) - math.log(2.0) / 2)  # log-normal, 90 %
    times_s = 0.1 * longest
    assert late_share(FAST, mix, 0.0, 0.02 + times_s * 1.05) < LATE < late_share(FAST, mix, 0.0, times_s)


def test_objective_that_not_even_an_idle_worker_meets_is_replaced() -> None:
    long = Mix(100_000.0, 1.0, spread=0.0)
    assert reachable_s(FAST, long, 2.0) == pytest.approx(2 * (0.02 + 10.0))
    assert sustainable_rate(FAST, long, 2.0) > 0.0
    assert reachable_s(FAST, MIX, 2.0) == 2.0


def test_typical_worker_serves_some_requests() -> None:
    assert 1.0 < sustainable_rate(TYPICAL, MIX, 2.0) < 10.0


def test_each_of_many_workers_serves_more_than_one_alone() -> None:
    rates = [sustainable_rate(FAST, MIX, 0.5, num) for num in (1, 4, 16)]
    assert rates == sorted(rates) and rates[0] < 0.8 * rates[-1]


def test_prompts_that_differ_need_more_workers() -> None:
    needs = [workers_needed(FAST, Mix(1000.0, 200.0, spread), 0.4, 20.0) for spread in (0.1, 1.0, 2.0)]
    assert needs == sorted(needs) and needs[0] < 0.9 * needs[-1]


def test_without_requests_no_worker_is_needed() -> None:
    assert workers_needed(FAST, MIX, 2.0, 0.0) == 0.0


@given(speeds, mixes, st.floats(0.05, 20.0))
def test_rate_meets_the_objective_and_a_higher_one_does_not(
    speed: Speed, mix: Mix, objective_s: float
) -> None:
    rate = sustainable_rate(speed, mix, objective_s)
    objective_s = reachable_s(speed, mix, objective_s)
    assert rate > 0.0
    assert late_share(speed, mix, rate, objective_s) <= LATE
    assert rate > 1e5 or late_share(speed, mix, rate * 1.01 + 1e-9, objective_s) > LATE


@given(speeds, mixes, st.floats(0.05, 20.0), st.floats(0.01, 1e3))
def test_workers_that_are_needed_meet_the_objective_and_fewer_do_not(
    speed: Speed, mix: Mix, objective_s: float, rate: float
) -> None:
    num = workers_needed(speed, mix, objective_s, rate)
    objective_s = reachable_s(speed, mix, objective_s)
    more, fewer = 1.001 * num, 0.98 * num
    assert late_share(speed, mix, rate / more, objective_s, more) <= LATE + 1e-9
    assert rate / num > 1e5 or late_share(speed, mix, rate / fewer, objective_s, fewer) > LATE - 1e-9


@given(speeds, mixes, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_more_are_late_at_a_higher_rate(speed: Speed, mix: Mix, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert late_share(speed, mix, low, 2.0) <= late_share(speed, mix, high, 2.0) + 1e-9


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize("busy", [0.4, 0.7])
@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_prediction_is_that_of_a_simulated_queue(num: int, busy: float, spread: float) -> None:
    """Prompts of random length at random times, each at the server that is free first, as the oracle of the
    formula."""
    rng, mix = random.Random(7), Mix(1000.0, 0.0, spread)
    prompt_s, sigma = 1000.0 * FAST.token_s, math.sqrt(math.log1p(spread))
    rate, now, free_s = busy / prompt_s, 0.0, [0.0] * num
    found = []
    for _ in range(60_000):
        now += rng.expovariate(rate * num)
        took_s = prompt_s * rng.lognormvariate(-sigma * sigma / 2, sigma)
        end_s = max(now, free_s[0]) + took_s
        heapq.heapreplace(free_s, end_s)
        found.append(end_s - now + FAST.start_s)
    objective_s = sorted(found)[int((1.0 - LATE) * len(found))]
    assert late_share(FAST, mix, rate, objective_s, num / OPEN) == pytest.approx(LATE, abs=0.03)
