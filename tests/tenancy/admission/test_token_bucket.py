"""Token bucket: amounts taken over time, overdraft, and the formatted duration."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy.admission.token_bucket import TokenBucket, duration


def test_a_bucket_begins_full_and_refills_at_its_rate() -> None:
    bucket = TokenBucket(2.0, 4.0, now=10.0)
    for _ in range(4):
        assert bucket.wait_s(1, 10.0) == 0.0
        bucket.take(1, 10.0)
    assert bucket.level(10.0) == 0.0
    assert bucket.wait_s(1, 10.0) == 0.5
    assert bucket.full_in_s(10.0) == 2.0
    assert bucket.wait_s(1, 10.5) == 0.0
    assert bucket.level(100.0) == 4.0
    assert repr(bucket) == "TokenBucket(4.0 of 4, 2/s)"


def test_an_overdraft_is_refilled_first() -> None:
    bucket = TokenBucket(1.0, 10.0, now=0.0)
    bucket.take(25, 0.0)
    assert bucket.level(0.0) == -15.0
    assert bucket.wait_s(5, 0.0) == 20.0


def test_more_than_the_capacity_is_admitted_when_the_bucket_is_full() -> None:
    bucket = TokenBucket(1.0, 10.0, now=0.0)
    assert bucket.wait_s(1000, 0.0) == 0.0
    bucket.take(1, 0.0)
    assert bucket.wait_s(1000, 0.0) == 1.0


@given(st.floats(0.01, 1000), st.floats(1, 1000), st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 100))))
def test_a_bucket_never_exceeds_its_rate_and_capacity(
    rate: float, capacity: float, coming: list[tuple[float, float]]
) -> None:
    bucket, now, taken = TokenBucket(rate, capacity, now=0.0), 0.0, 0.0
    for after, cost in coming:
        now += after
        wait_s = bucket.wait_s(cost, now)
        assert bucket.wait_s(cost, now) == wait_s >= 0.0
        now += wait_s
        assert bucket.wait_s(cost, now) <= 1e-3 / rate
        bucket.take(cost, now)
        taken += cost
        assert taken <= rate * now + capacity + cost + 1e-3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0ms"),
        (0.0115, "12ms"),
        (1.0, "1s"),
        (1.42, "1.5s"),
        (60.0, "1m0s"),
        (360.0, "6m0s"),
        (59.99, "1m0s"),
        (3723.04, "1h2m3.1s"),
    ],
)
def test_a_duration_as_openai_writes_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_older_clock_reading_finds_the_bucket_full() -> None:
    bucket = TokenBucket(0.5, 1.0, 100.0)
    assert bucket.wait_s(1.0, 99.9) == 0.0
    bucket.take(1.0, 99.9)
    assert bucket.level(100.0) == 0.0 and bucket.level(101.0) == 0.5
