"""Buckets as Prometheus defines them: cumulative, with inclusive bounds."""

from engines.sim.histogram import SimHistogram


def test_buckets_are_cumulative_and_inclusive() -> None:
    histogram = SimHistogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.observe(value)
    assert list(histogram.buckets()) == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert (histogram.count, histogram.sum) == (4, 102.0)
    assert repr(histogram) == "SimHistogram(count=4, sum=102)"
