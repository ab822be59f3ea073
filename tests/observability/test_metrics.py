import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.worker import WorkerId
from gateway.observability.metrics import UNKNOWN_MODEL, Histogram, Metrics, WorkerMetrics

A = WorkerId("a:1")


def test_a_worker_is_counted_in_one_place() -> None:
    metrics = Metrics()
    assert metrics.worker(A) is metrics.worker(A)
    assert isinstance(metrics.worker(A), WorkerMetrics)
    assert [worker for worker, _ in metrics.items()] == [A]


def test_a_model_that_no_worker_serves_is_no_label() -> None:
    metrics = Metrics({"m"}.__contains__)
    assert [metrics.model_label(name) for name in ("m", "any", "")] == ["m", UNKNOWN_MODEL, UNKNOWN_MODEL]


def test_requests_are_counted_by_status_class() -> None:
    metrics = Metrics()
    for status in (200, 201, 499):
        metrics.ended("m", "chat", status, 1.0)
    assert metrics.requests == {("m", "chat", "2xx"): 2, ("m", "chat", "4xx"): 1}
    assert {key: sum(found.counts) for key, found in metrics.request_s.items()} == {
        ("chat", "2xx"): 2,
        ("chat", "4xx"): 1,
    }


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.sum == 104.0


@given(st.lists(st.floats(0, 100)))
def test_buckets_are_cumulative_and_count_all(values: list[float]) -> None:
    histogram = Histogram((0.01, 0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    buckets = histogram.buckets()
    expected = [sum(v <= bound for v in values) for bound in histogram.bounds]
    assert [count for _, count in buckets] == [*expected, len(values)]
    assert histogram.sum == pytest.approx(sum(values))
