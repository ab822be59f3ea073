"""The rate that one worker can serve in time."""

import heapq
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.speed import TYPICAL, Speed
from gateway.scaling.capacity import (
    LATE,
    OPEN,
    Mix,
    Objectives,
    is_reachable,
    itl_p90_s,
    late_share,
    meets,
    num_running,
    reachable,
    sustainable_rate,
    ttft_p90_s,
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
mixes = st.builds(Mix, st.floats(0.0, 1e5), st.floats(0.0, 5e3), st.floats(0.0, 20.0)).filter(
    lambda mix: sum(mix[:2]) > 1.0
)


def test_rate_is_limited_by_prompts_of_a_prefill_worker() -> None:
    rate = sustainable_rate(FAST, Mix(1000.0, 0.0), Objectives(1e9))
    assert rate == pytest.approx(9.0, rel=0.01)  # a prompt takes 0.1 s, busy for 90 %


def test_tight_objective_allows_a_lower_rate() -> None:
    rates = [sustainable_rate(FAST, MIX, Objectives(objective_s)) for objective_s in (0.3, 0.5, 1.0, 3.0)]
    assert rates == sorted(rates) and rates[0] < 0.7 * rates[-1]


def test_concurrency_limit_bounds_the_rate() -> None:
    limited = Speed(start_s=0.02, token_s=1e-4, step_s=0.02, max_running=10)
    assert num_running(limited, MIX, sustainable_rate(limited, MIX, Objectives(10.0))) == pytest.approx(
        8.0, rel=0.01
    )


def test_idle_worker_does_not_wait() -> None:
    assert ttft_p90_s(FAST, MIX, 0.0) == pytest.approx(0.02 - math.log(LATE) * 0.1)


def test_objective_that_not_even_an_idle_worker_meets_is_replaced() -> None:
    long = Mix(100_000.0, 1.0)
    reached = reachable(FAST, long, Objectives(2.0, 0.01))
    assert reached == pytest.approx((2 * (0.02 - math.log(LATE) * 10.0), 1.25 * 0.02))
    assert sustainable_rate(FAST, long, Objectives(2.0, 0.01)) > 0.0
    assert reachable(FAST, MIX, Objectives(2.0, 0.05)) == (2.0, 0.05)


def test_typical_worker_serves_some_requests() -> None:
    assert 1.0 < sustainable_rate(TYPICAL, MIX, Objectives(2.0)) < 10.0


@given(speeds, mixes, st.builds(Objectives, st.floats(0.05, 20.0), st.floats(0.005, 1.0)))
def test_rate_meets_the_objectives_and_a_higher_one_does_not(
    speed: Speed, mix: Mix, objectives: Objectives
) -> None:
    rate = sustainable_rate(speed, mix, objectives)
    objectives = reachable(speed, mix, objectives)
    assert rate > 0.0 and meets(speed, mix, rate, objectives)
    assert rate > 1e5 or not meets(speed, mix, rate * 1.01 + 1e-9, objectives)


@given(speeds, mixes, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_ttft_rises_with_the_rate(speed: Speed, mix: Mix, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert ttft_p90_s(speed, mix, low) <= ttft_p90_s(speed, mix, high) * (1 + 1e-9)


@given(speeds, mixes, st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_itl_rises_with_the_rate_and_with_the_share_of_prompts(
    speed: Speed, mix: Mix, one: float, other: float, few: float, many: float
) -> None:
    (low, high), (less, more) = sorted((one, other)), sorted((few, many))
    assert itl_p90_s(speed, mix, low, less) <= itl_p90_s(speed, mix, high, more) * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_prediction_is_that_of_a_simulated_queue(share: float) -> None:
    """Prompts of random length at random times, one after the other, as the oracle of the formula."""
    rng, mix = random.Random(7), Mix(1000.0, 0.0)
    rate = share / (mix.prompt_tokens * FAST.token_s)
    now = free_s = 0.0
    found = []
    for _ in range(200_000):
        now += rng.expovariate(rate)
        free_s = max(now, free_s) + rng.expovariate(1 / mix.prompt_tokens) * FAST.token_s
        found.append(free_s - now + FAST.start_s)
    simulated_s = sorted(found)[int(0.9 * len(found))]
    assert ttft_p90_s(FAST, mix, rate) == pytest.approx(simulated_s, rel=0.03)


@pytest.mark.parametrize(("share", "rate"), [(0.0, 3.0), (0.5, 2.0), (1.0, 1.0), (1.0, 3.0)])
def test_itl_is_that_of_simulated_answers(share: float, rate: float) -> None:
    """Answers with steps held up by prompts at random times, as the oracle of the formula."""
    rng, speed = random.Random(11), FAST
    gap_s = num_running(speed, MIX, rate, share) / (rate * MIX.output_tokens)
    step_s = gap_s - rate * share * MIX.prompt_tokens * speed.harm_s * gap_s
    found = []
    for _ in range(20_000):
        answer_s, held_s = MIX.output_tokens * gap_s, 0.0
        now = rng.expovariate(rate * share) if share else answer_s
        while now < answer_s:
            held_s += rng.expovariate(1 / MIX.prompt_tokens) * speed.harm_s
            now += rng.expovariate(rate * share)
        found.append(step_s + held_s / MIX.output_tokens)
    simulated_s = sorted(found)[int(0.9 * len(found))]
    assert itl_p90_s(speed, MIX, rate, share) == pytest.approx(simulated_s, rel=0.06)


def test_several_workers_serve_more_each_than_one_alone() -> None:
    objectives = Objectives(0.5)
    alone = sustainable_rate(FAST, MIX, objectives)
    each = [num * alone / workers_needed(FAST, MIX, objectives, num * alone) for num in (4, 16)]
    assert 1.1 < each[0] < each[1]


def test_prompts_that_differ_need_more_workers() -> None:
    mixes = [Mix(1000.0, 200.0, spread) for spread in (0.1, 1.0, 2.0)]
    needs = [workers_needed(FAST, mix, Objectives(0.4), 20.0) for mix in mixes]
    assert needs == sorted(needs) and needs[0] < 0.9 * needs[-1]


def test_without_requests_no_worker_is_needed() -> None:
    assert workers_needed(FAST, MIX, Objectives(2.0), 0.0) == 0.0


def test_itl_objective_needs_more_workers() -> None:
    needs = [workers_needed(FAST, MIX, Objectives(5.0, itl_s), 20.0) for itl_s in (math.inf, 0.05, 0.03)]
    assert needs == sorted(needs) and needs[0] < needs[-1]


@given(
    speeds, mixes, st.builds(Objectives, st.floats(0.05, 20.0), st.floats(0.005, 1.0)), st.floats(0.01, 1e3)
)
@settings(max_examples=50)
def test_workers_that_are_needed_meet_the_objectives(
    speed: Speed, mix: Mix, objectives: Objectives, rate: float
) -> None:
    num = workers_needed(speed, mix, objectives, rate)
    objectives, more = reachable(speed, mix, objectives), 1.001 * num
    assert late_share(speed, mix, rate / more, objectives.ttft_s, more) <= LATE + 1e-9
    assert itl_p90_s(speed, mix, rate / more) <= objectives.itl_s * (1 + 1e-9)
    twice, half = (workers_needed(speed, mix, objectives, times * rate) for times in (2.0, 0.5))
    assert half <= num * (1 + 1e-6) <= twice * (1 + 1e-5)


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize("busy", [0.4, 0.7])
@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_late_share_is_that_of_a_simulated_queue(num: int, busy: float, spread: float) -> None:
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
    ttft_s = sorted(found)[int((1.0 - LATE) * len(found))]
    assert late_share(FAST, mix, rate, ttft_s, num / OPEN) == pytest.approx(LATE, abs=0.03)


def paced(start_s: float = 0.02, step_s: float = 0.02) -> Speed:
    return Speed(start_s=start_s, token_s=1e-4, step_s=step_s, step_seq_s=1e-4, harm_s=1e-4)


@pytest.mark.parametrize("step_s", [0.05, 0.08, 0.095, 0.0999, 0.09999999, 0.1, 0.101, 0.2])
@pytest.mark.parametrize("output_tokens", [20.0, 200.0])
def test_need_stays_moderate_where_an_idle_step_nears_the_objective(
    step_s: float, output_tokens: float
) -> None:
    speed = paced(step_s=step_s)
    needed = workers_needed(speed, Mix(2000.0, output_tokens), Objectives(2.0, 0.1), 1.0)
    assert 0.0 < needed < 6.0


def test_objectives_are_reachable_where_an_idle_worker_meets_them() -> None:
    mix, objectives = Mix(100.0, 100.0), Objectives(2.0, 0.1)
    assert is_reachable(paced(step_s=0.05), mix, objectives)
    assert not is_reachable(paced(step_s=0.11), mix, objectives)
    assert not is_reachable(paced(start_s=3.0), mix, objectives)
