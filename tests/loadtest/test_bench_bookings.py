"""The figure `redis.burst_moved`, and its definition."""

from loadtest.bench_bookings import moved


def test_requests_that_went_elsewhere_are_counted_in_hundredths() -> None:
    assert moved([31, 11, 11, 11], [31, 11, 11, 11]) == 0
    assert moved([16, 16, 16, 16], [64, 0, 0, 0]) == 75
