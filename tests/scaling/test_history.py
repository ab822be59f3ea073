"""Windows of a group's traffic."""

import math

import pytest

from gateway.scaling.history import KEPT_S, Counts, History


def _played(per_round: Counts, num_rounds: int) -> History:
    history = History()
    for number in range(num_rounds + 1):
        history.add(per_round if number else Counts(), number * 5.0)
    return history


def test_window_has_the_rates_of_its_time() -> None:
    history = _played(Counts(requests=10, prompt_tokens=500, output_tokens=50, unserved=5), 40)
    for seconds in (15.0, 60.0):
        window = history.window(seconds)
        assert window.seconds == seconds
        assert window.requests_per_s == 3.0  # served or not
        assert window.prompt_tokens_per_s == 100.0
        assert window.output_tokens_per_s == 10.0


def test_short_history_is_a_shorter_window() -> None:
    window = _played(Counts(requests=10), 2).window(60.0)
    assert window.seconds == 10.0 and window.requests_per_s == 2.0


def test_history_without_samples_has_no_traffic() -> None:
    assert History().window(60.0).requests_per_s == 0.0
    assert History().window(60.0).attainment is None


def test_burst_is_seen_in_the_short_window() -> None:
    history = _played(Counts(requests=5), 60)
    for number in range(61, 64):
        history.add(Counts(requests=50), number * 5.0)
    assert history.window(15.0).requests_per_s == 10.0
    assert history.window(60.0).requests_per_s == pytest.approx((9 * 5 + 3 * 50) / 60)


def test_attainment_counts_the_unserved_as_missed() -> None:
    window = _played(Counts(in_time=6, late=2, unserved=2), 4).window(60.0)
    assert window.attainment == pytest.approx(0.6)
    assert _played(Counts(unserved=1), 4).window(60.0).attainment == 0.0


def test_memory_is_bounded() -> None:
    history = _played(Counts(requests=1), 10_000)
    assert history.window(1e9).seconds == KEPT_S


def test_counts_that_fall_count_as_nothing() -> None:
    assert Counts(5, 7).minus(Counts(6, 3)) == Counts(0, 4)


def test_answers_that_fill_a_cache_are_those_that_run_by_what_they_fill() -> None:
    looks = [Counts(num_running=30, kv_usage=0.5), Counts(num_running=90, kv_usage=1.5), Counts()]
    seen = Counts()
    for look in looks:
        seen = seen.plus(look)
    assert seen.num_running_of_cache == 60.0
    assert Counts().num_running_of_cache == Counts(num_running=5).num_running_of_cache == math.inf
