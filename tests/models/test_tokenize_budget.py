"""Budgets of a worker's `/tokenize`."""

import pytest

from gateway.models.tokenize_budget import BYTES_PER_ROUND_TRIP, TokenizeBudget

LIMIT_S = 1.0
SHORT, LONG = 100, 64 * BYTES_PER_ROUND_TRIP


def taught(*times_s: float, num_bytes: int = SHORT) -> TokenizeBudget:
    budget = TokenizeBudget(LIMIT_S)
    for took_s in times_s:
        budget.answered(took_s, num_bytes)
    return budget


def test_a_worker_that_never_answered_gets_a_quarter_of_the_limit() -> None:
    assert TokenizeBudget(LIMIT_S).seconds(SHORT) == TokenizeBudget(LIMIT_S).seconds(LONG) == 0.25


@pytest.mark.parametrize(
    ("took_s", "least_s", "most_s"),
    [(0.001, 0.05, 0.05), (0.080, 0.155, 0.165), (0.4, 0.75, 0.85), (30.0, 1.0, 1.0)],
    ids=["fast: the least", "slower: twice its time", "slow", "the limit"],
)
def test_the_budget_follows_what_the_worker_takes(took_s: float, least_s: float, most_s: float) -> None:
    assert least_s <= taught(*[took_s] * 40).seconds(SHORT) <= most_s


def test_a_first_answer_is_followed_with_room() -> None:
    assert taught(0.1).seconds(SHORT) == pytest.approx(0.3)


def test_times_that_vary_get_more_room_than_equal_ones() -> None:
    equal, varying = taught(*[0.1] * 40), taught(*[0.02, 0.18] * 20)
    assert varying.seconds(SHORT) > 1.5 * equal.seconds(SHORT)


def test_a_worker_that_is_slow_now_and_then_is_waited_for() -> None:
    """A prompt in fifty takes 0.3 s, the others 5 ms: of 20 slow ones only the first is late."""
    budget, num_late = taught(*[0.005] * 40), 0
    for number in range(1000):
        took_s = 0.3 if number % 50 == 10 else 0.005
        if budget.seconds(SHORT) < took_s:
            budget.late()
            num_late += 1
        budget.answered(took_s, SHORT)  # a late call goes on
    assert num_late == 1


def test_a_worker_that_is_fast_again_is_not_waited_for_as_long() -> None:
    budget = taught(0.3)
    for _ in range(600):
        budget.answered(0.005, SHORT)
    assert budget.seconds(SHORT) == 0.05


def test_longer_bodies_get_more_time() -> None:
    budget = taught(*[0.005] * 40)
    assert budget.seconds(SHORT) == 0.05
    assert 0.6 < budget.seconds(LONG) < 0.7
    assert budget.seconds(SHORT, num_calls=20) == pytest.approx(0.2, rel=0.05)


def test_a_long_body_s_time_is_no_reason_to_wait_longer_for_a_short_one() -> None:
    assert taught(*[0.6] * 40, num_bytes=LONG).seconds(SHORT) == 0.05


def test_late_calls_get_twice_the_time_until_an_answer_comes() -> None:
    """A worker that became slower is late a few times, and never again."""
    budget, took_s, num_late = taught(*[0.03] * 40), 0.4, 0
    while budget.seconds(SHORT) < took_s:
        budget.late()
        num_late += 1
    assert num_late == 3
    for _ in range(20):
        budget.answered(took_s, SHORT)
        assert took_s < budget.seconds(SHORT) <= LIMIT_S


def test_endless_lateness_stays_within_the_limit_and_an_answer_ends_it() -> None:
    budget = taught(*[0.001] * 40)
    for _ in range(1000):
        budget.late()
    assert 0.05 <= budget.seconds(SHORT) <= LIMIT_S
    budget.answered(0.001, SHORT)
    assert budget.seconds(SHORT) == 0.05
