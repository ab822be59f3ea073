"""Drain rate of a queue: predicted at first, then measured while something waits."""

import pytest

from gateway.tenancy.admission.drain_rate import PRIOR_REQUESTS, DrainRate, PredictedRate
from gateway.tenancy.admission.fair_queue import NEVER

TWO_PER_S = PredictedRate(2.0, NEVER)


def drained(rate: DrainRate, begin: float, seconds: int, tokens: int = 100, *, each_s: float = 1.0) -> None:
    """A request of so many tokens leaves each `each_s`."""
    rate.begin(begin)
    for number in range(1, int(seconds / each_s) + 1):
        rate.left(tokens, begin + number * each_s)


def test_before_observations_the_fleets_speed_is_the_rate() -> None:
    rate = DrainRate()
    assert rate.seconds_for(10, 1000, TWO_PER_S, 3.0) == pytest.approx(5.0)
    assert rate.seconds_for(10, 1000, PredictedRate(NEVER, 200.0), 3.0) == pytest.approx(5.0)
    assert rate.seconds_for(10, 1000, PredictedRate(5.0, 200.0), 3.0) == pytest.approx(5.0), "the slower one"
    assert rate.seconds_for(0, 0, TWO_PER_S, 3.0) == 0.0


def test_while_the_first_answers_run_the_estimate_grows_by_and_by() -> None:
    rate, before = DrainRate(), 5.0
    rate.begin(0.0)
    for tenth in range(1, 40):
        now = tenth / 10
        estimate = rate.seconds_for(10, 1000, TWO_PER_S, now)
        assert before <= estimate <= 5.0 + 10 * now / PRIOR_REQUESTS
        assert estimate < before + 1.0
        before = estimate


@pytest.mark.parametrize("predicted", [0.1, 1.0, 1000.0])
def test_what_was_seen_outweighs_the_prediction(predicted: float) -> None:
    rate = DrainRate()
    drained(rate, 0.0, 60, each_s=0.1)
    estimate = rate.seconds_for(50, 5000, PredictedRate(predicted, NEVER), 60.0)
    assert estimate == pytest.approx(5.0, rel=0.25)


def test_only_time_with_waiting_requests_counts() -> None:
    rate = DrainRate()
    drained(rate, 0.0, 10)
    rate.end(10.0)
    before = rate.seconds_for(10, 1000, PredictedRate(1.0, NEVER), 10.0)
    assert (
        rate.seconds_for(10, 1000, PredictedRate(1.0, NEVER), 1e6) == before == pytest.approx(10.0, rel=0.1)
    )


def test_the_rate_follows_changes() -> None:
    rate = DrainRate()
    drained(rate, 0.0, 60, each_s=1.0)
    drained(rate, 60.0, 60, each_s=0.1)
    assert rate.seconds_for(100, 10_000, PredictedRate(10.0, NEVER), 120.0) == pytest.approx(10.0, rel=0.1)
    # nothing leaves any more: the estimate grows, and stays a number
    assert 100 < rate.seconds_for(100, 10_000, PredictedRate(10.0, NEVER), 1e5) < 1e4


def test_large_prompts_wait_longer_where_prompts_bound_the_queue() -> None:
    rate = DrainRate()
    drained(rate, 0.0, 60, tokens=100, each_s=0.1)
    predicted = PredictedRate(NEVER, 1000.0)
    small, large = (rate.seconds_for(10, tokens, predicted, 60.0) for tokens in (1000, 10_000))
    assert small == pytest.approx(1.0, rel=0.1) and large == pytest.approx(10.0, rel=0.1)


def test_the_repr_shows_the_sums() -> None:
    rate = DrainRate()
    drained(rate, 0.0, 2)
    assert repr(rate) == "DrainRate(2.0 requests, 195 tokens in 1.9 s)"
    assert repr(PredictedRate(2.0, 100.0)) == "PredictedRate(2 requests/s, 100 tokens/s)"
