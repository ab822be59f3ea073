import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision import Candidate
from gateway.core.speed import Speed
from gateway.core.value import replace
from gateway.core.worker import Role
from gateway.costs.cost_model import (
    BOUND,
    FREE_S,
    GAIN,
    HARM,
    TokenPrice,
    bounded,
    computing_s,
    first_parts_s,
    harm_token_s,
    mean_token_s,
    other_token_s,
    others_s,
    parts_s,
    prefill_share,
    running_s,
    token_s,
    ttft_s,
    until_free_s,
    with_copy_s,
)
from gateway.costs.token_work import WORTH
from tests.policies.contract import candidate

PACE = Speed(0.01, 1 / 10_000, 1e-7, 0.02, 1e-3, 1e-4)
IDLE = replace(candidate("a", prompt=5000), speed=PACE)


def test_ttft_grows_with_work_ahead_and_running_answers() -> None:
    assert ttft_s(IDLE, WORTH) == pytest.approx(0.51)
    assert ttft_s(replace(IDLE, booked_tokens=5000), WORTH) == pytest.approx(1.01)
    assert ttft_s(replace(IDLE, num_in_flight=100), WORTH) == pytest.approx(0.56)


def test_offloaded_blocks_cost_a_transfer() -> None:
    offloaded = replace(IDLE, offloaded={("CPU",): 1000, ("DISK", "CPU"): 1000})
    assert ttft_s(offloaded, {"CPU": 0.8, "DISK": 0.5}) == pytest.approx(0.51 + 400 / 10_000)


def test_a_full_cache_delays_the_first_token() -> None:
    full = replace(IDLE, kv_usage=0.99, num_in_flight=10, num_waiting=1)
    assert until_free_s(IDLE) == 0
    assert until_free_s(full) == pytest.approx(200 * 0.03 * 2 / 10)
    assert ttft_s(full, WORTH) > ttft_s(replace(full, kv_usage=0.9), WORTH)


def test_a_reached_concurrency_limit_delays_the_first_token() -> None:
    speed = replace(PACE, max_running=64.0, answer_tokens=500.0)
    last, none = (replace(IDLE, speed=speed, num_in_flight=number) for number in (63, 64))
    interval_s = 500 * (0.02 / 64 + 0.001)
    assert [until_free_s(last), until_free_s(none)] == [0, pytest.approx(interval_s)]
    assert until_free_s(replace(none, num_in_flight=73)) == pytest.approx(10 * interval_s)
    assert ttft_s(none, WORTH) - ttft_s(last, WORTH) > 0.9 * interval_s


def test_tokens_ahead_are_computed_while_answers_end() -> None:
    """The longer of both waits counts, and prompts are slowed by the answers that run."""
    speed = replace(PACE, max_running=64.0, answer_tokens=500.0)
    queued = replace(IDLE, speed=speed, num_in_flight=84)
    wait_s = until_free_s(queued)
    few, many = replace(queued, booked_tokens=1000), replace(queued, booked_tokens=1_000_000)
    assert ttft_s(few, WORTH) == pytest.approx(ttft_s(queued, WORTH))
    assert ttft_s(many, WORTH) - ttft_s(queued, WORTH) == pytest.approx(1_000_000 * token_s(queued) - wait_s)
    for each in (queued, few, many):
        assert sum(first_parts_s(each, WORTH).values()) == pytest.approx(ttft_s(each, WORTH))
    running = replace(queued, num_in_flight=64)
    assert token_s(queued) == token_s(running)
    waiting_s = 20 * speed.harm_s  # each of those that wait for an answer to end waits longer
    assert harm_token_s(queued) == pytest.approx(harm_token_s(running) + waiting_s)


def test_equal_workers_cost_the_same_however_their_speed_is_split_in_two_weights() -> None:
    """Under steady load only the sum of a token's time and the answers' part of it is known."""
    one = replace(IDLE, num_in_flight=50, stays_s=100.0)
    two = replace(one, speed=replace(PACE, token_s=PACE.token_s + 50 * PACE.seq_s, seq_s=0.0))
    assert others_s(one, 1e-4) == pytest.approx(others_s(two, 1e-4))
    assert mean_token_s([one]) == pytest.approx(mean_token_s([two]))


def test_workers_with_requests_behind_answers_raise_the_price_less_than_busy_ones() -> None:
    """Such workers compute prompts for a part of their time."""
    speed = replace(PACE, max_running=64.0, answer_tokens=500.0)
    busy = replace(IDLE, speed=speed, num_in_flight=63, booked_tokens=4000)
    queued = replace(busy, num_in_flight=84)
    assert prefill_share(busy) == 1.0
    assert prefill_share(queued) == pytest.approx(4000 * token_s(queued) / until_free_s(queued))
    assert prefill_share(replace(queued, booked_tokens=10_000_000)) == 1.0
    prices = [TokenPrice(), TokenPrice()]
    for price, each in zip(prices, (busy, queued), strict=True):
        for _ in range(1000):
            price.see("m", [each])
    assert prices[1].per_token_s("m", [queued]) < prices[0].per_token_s("m", [queued])


def test_long_answers_raise_the_cost_of_a_worker() -> None:
    """Each running answer makes the steps of all others longer."""
    long, short = (replace(PACE, answer_tokens=number) for number in (1000.0, 10.0))
    few, many = replace(IDLE, num_in_flight=10), replace(IDLE, num_in_flight=20)
    more_s = [
        running_s(replace(many, speed=each)) - running_s(replace(few, speed=each)) for each in (short, long)
    ]
    assert more_s[0] < 0.2 < 2 < more_s[1]


def test_running_answers_are_delayed_by_a_prefill_except_at_prefill_workers() -> None:
    busy = replace(IDLE, num_in_flight=10)
    prefill = type(busy.worker)(busy.worker.id, busy.worker.url, busy.worker.served, role=Role.PREFILL)
    assert harm_token_s(busy) == pytest.approx(HARM * 10 * 1e-4)
    assert harm_token_s(replace(busy, worker=prefill)) == 0
    assert others_s(busy, 0.0) > others_s(IDLE, 0.0) == 0


def test_the_price_of_a_token_follows_the_load_and_is_one_for_the_fleet() -> None:
    price, busy = TokenPrice(), replace(IDLE, booked_tokens=1)
    fast = replace(IDLE, speed=Speed(token_s=1 / 30_000))
    assert price.per_token_s("m", [IDLE]) == 0
    assert mean_token_s([IDLE, fast]) == pytest.approx(1 / 20_000)
    for _ in range(5000):
        price.see("m", [busy, IDLE])
    assert price.per_token_s("m", [IDLE]) == pytest.approx(GAIN / 10_000, rel=0.01)
    for _ in range(5000):
        price.see("m", [busy, busy])
    assert price.per_token_s("m", [IDLE]) == pytest.approx(GAIN * 19 / 10_000, rel=0.01)
    assert price.per_token_s("other", [IDLE]) == 0
    assert repr(price) == "TokenPrice({'m': 1.0})"


def test_the_parts_of_a_cost_add_up() -> None:
    speed = replace(PACE, max_running=3.0, start_seq_s=0.001)
    busy = replace(IDLE, booked_tokens=300, num_in_flight=7, stays_s=100.0, kv_usage=0.98, speed=speed)
    busy = replace(busy, offloaded={("CPU",): 64})
    parts = parts_s(busy, WORTH, 1e-4)
    assert sum(parts.values()) == pytest.approx(ttft_s(busy, WORTH) + others_s(busy, 1e-4))


def test_a_copy_in_place_saves_all_that_its_tokens_cost() -> None:
    busy = replace(IDLE, num_in_flight=7, stays_s=100.0)
    cost_s = ttft_s(busy, WORTH) + others_s(busy, 1e-4)
    there = replace(busy, overlap_tokens=4000, uncached_tokens=1000)
    in_place_s = ttft_s(there, WORTH) + others_s(there, 1e-4)
    each_s = other_token_s(busy, 1e-4)
    assert with_copy_s(busy, cost_s, 4000, each_s) == pytest.approx(in_place_s)
    assert with_copy_s(there, in_place_s, 4000, each_s) == in_place_s


SPEEDS = st.builds(
    Speed,
    start_s=st.floats(0.001, 0.1),
    token_s=st.floats(1e-6, 1e-3),
    seq_s=st.floats(0, 1e-5),
    max_running=st.sampled_from([1.0, 16.0, math.inf]),
)
CANDIDATES = st.builds(
    lambda overlap, booked, num, waiting, usage, speed: replace(
        candidate("a", overlap=overlap, prompt=50_000),
        booked_tokens=booked,
        num_in_flight=num,
        num_waiting=waiting,
        kv_usage=usage,
        speed=speed,
    ),
    st.integers(0, 50_000),
    st.integers(0, 10**6),
    st.integers(0, 500),
    st.integers(0, 500),
    st.floats(0, 1),
    SPEEDS,
)


@given(
    st.lists(CANDIDATES, min_size=1, max_size=8),
    st.integers(0, 50_000),
    st.floats(0, 100),
    st.floats(0, 1e-2),
    st.integers(0, 100),
)
def test_no_request_waits_beyond_the_bound_whatever_the_costs_say(
    candidates: list[Candidate], num_cached: int, budget_s: float, price: float, seed: int
) -> None:
    rng = random.Random(seed)
    costs, firsts = [rng.random() for _ in candidates], [ttft_s(each, WORTH) for each in candidates]
    lowest = min(firsts)
    best = candidates[firsts.index(lowest)]
    found = bounded(candidates, costs, firsts, price, budget_s, num_cached)
    assert found[firsts.index(lowest)] == costs[firsts.index(lowest)], "the best worker is always within"
    for each, cost, first_s in zip(candidates, found, firsts, strict=True):
        gain_s = max(best.uncached_tokens - each.uncached_tokens, 0) * price
        gain_s += budget_s if each.overlap_tokens < num_cached else 0.0
        if cost < math.inf:
            assert first_s <= max(BOUND * lowest, FREE_S) + gain_s


def test_what_a_worker_computes_now_is_ready_when_its_queue_is_done() -> None:
    there = replace(IDLE, booked_tokens=3000, is_exact=True)
    assert computing_s(there, 5000) == pytest.approx(3000 / 10_000)
    assert computing_s(there, 1000) == pytest.approx(1000 / 10_000)
    assert computing_s(there, 0) == 0
    assert computing_s(replace(there, is_exact=False), 5000) == 0
