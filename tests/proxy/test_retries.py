"""Retries: a table of failures, and a budget that bounds them."""

import logging

import pytest

from gateway.config.proxy import ProxySection
from gateway.core.worker import WorkerId
from gateway.proxy.retries import FLOOR, Attempts, RetryBudget
from gateway.runtime.rate_limited_log import RateLimitedLog

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def begun(budget: RetryBudget, *, may_repeat: bool = True, now: float = 0.0) -> Attempts:
    budget.began(now)
    return Attempts(budget, may_repeat=may_repeat)


def test_a_failed_request_is_retried_at_another_worker() -> None:
    tries = begun(RetryBudget())
    tries.was_sent = True
    assert tries.may_ask_another()
    assert tries.lost(A, "died", is_refused=False) == ""
    assert tries.is_retry
    assert not tries.may_ask_another()
    assert "no attempts are left" in tries.lost(B, "died too", is_refused=False)
    assert str(tries) == "a: died; b: died too"


def test_refused_connections_are_no_attempts_and_cost_no_budget() -> None:
    budget = RetryBudget()
    tries = begun(budget)
    for worker in (A, B):
        assert tries.lost(worker, "refused", is_refused=True) == ""
    assert not tries.is_retry and not budget.num_retrying
    tries.was_sent = True
    assert tries.lost(C, "died", is_refused=False) == ""
    assert budget.num_retrying == 1


def test_a_connection_that_times_out_is_an_attempt_but_no_load() -> None:
    budget = RetryBudget(ProxySection(max_attempts=2))
    tries = begun(budget)
    assert tries.lost(A, "too slow", is_refused=False) == ""
    assert not budget.num_retrying
    assert tries.lost(B, "too slow", is_refused=False) != ""


@pytest.mark.parametrize(
    ("may_repeat", "was_sent", "is_again", "should_retry"),
    [
        (True, True, True, True),
        (True, False, True, True),
        (False, False, True, True),
        (False, True, False, False),
    ],
)
def test_a_request_that_stores_state_is_not_sent_twice(
    may_repeat: bool, was_sent: bool, is_again: bool, should_retry: bool
) -> None:
    tries = begun(RetryBudget(), may_repeat=may_repeat)
    tries.was_sent = was_sent
    assert tries.may_ask_another() is may_repeat
    why = tries.lost(A, "died", is_refused=False)
    assert (why == "") is is_again
    error = tries.gave_up(why or "x", RateLimitedLog(logging.getLogger("t")), "r")
    assert (error.should_retry, error.retry_after_s) == (should_retry, 1)
    assert tries.was_late().should_retry is may_repeat


def lose(tries: Attempts) -> bool:
    tries.was_sent = True
    return not tries.lost(A, "died", is_refused=False)


@pytest.mark.parametrize("num", [500, 5000])
def test_retries_add_at_most_a_fifth_of_requests(num: int) -> None:
    """Requests follow one another, each of them lost."""
    budget, num_again = RetryBudget(), 0
    for i in range(num):
        tries = begun(budget, now=i * 0.001)
        num_again += lose(tries)
        budget.ended(tries)
    assert num // 5 - 1 <= num_again <= num // 5 + 2 * FLOOR
    assert budget.num_denied == num - num_again
    assert (budget.num_in_flight, budget.num_retrying) == (0, 0)


def test_the_floor_does_not_lift_the_share() -> None:
    """At a steady hundred requests per second, a second adds no more than twenty."""
    budget, num_again = RetryBudget(), []
    for i in range(1000):
        tries = begun(budget, now=i * 0.01)
        num_again.append(lose(tries))
        budget.ended(tries)
    assert all(sum(num_again[i : i + 100]) <= 21 for i in range(200, 1000, 100))


@pytest.mark.parametrize(("num", "most"), [(5, 5), (30, FLOOR), (200, 40)])
def test_at_most_a_fifth_in_flight_are_retries(num: int, most: int) -> None:
    """All requests are at work when their worker dies."""
    budget = RetryBudget()
    some = [begun(budget, now=i * 10.0) for i in range(num)]
    assert sum(map(lose, some)) == most
    assert budget.num_retrying == most
    for tries in some:
        budget.ended(tries)
    assert (budget.num_in_flight, budget.num_retrying) == (0, 0)


def test_a_quiet_gateway_retries_every_request() -> None:
    budget = RetryBudget()
    for i in range(100):
        tries = begun(budget, now=i * 0.1)
        assert lose(tries)
        budget.ended(tries)


def test_a_lost_retry_is_one_in_flight_but_each_is_paid_for() -> None:
    budget = RetryBudget(ProxySection(max_attempts=5))
    tries = begun(budget)
    assert lose(tries) and lose(tries) and lose(tries)
    assert budget.num_retrying == 1
    assert "7.2 left" in repr(budget)


def test_without_a_share_only_refused_connections_are_retried() -> None:
    budget = RetryBudget(ProxySection(retry_share=0.0))
    tries = begun(budget)
    assert tries.lost(A, "refused", is_refused=True) == ""
    assert not lose(tries)
