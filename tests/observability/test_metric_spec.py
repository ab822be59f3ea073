from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from gateway.observability.metric_spec import Merge, counter, gauge, histogram
from gateway.observability.metrics import Histogram


def lines(metric: Metric) -> list[str]:
    class Once:
        def collect(self) -> list[Metric]:
            return [metric]

    registry = CollectorRegistry()
    registry.register(Once())  # type: ignore[arg-type]
    return [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]


def test_a_counter_keeps_its_name() -> None:
    assert lines(counter("kvgate_x_total", "X.").single(3)) == ["kvgate_x_total 3.0"]


def test_a_metric_has_one_label_or_several() -> None:
    assert lines(gauge("kvgate_x", "X.", "worker").family([("a", 1)])) == ['kvgate_x{worker="a"} 1.0']
    both = gauge("kvgate_x", "X.", "worker", "state").family([(("a", "up"), 1)])
    assert lines(both) == ['kvgate_x{state="up",worker="a"} 1.0']


def test_a_histogram_has_its_buckets_and_its_sum() -> None:
    values = Histogram((1.0,))
    values.observe(0.5)
    page = lines(histogram("kvgate_x_seconds", "X.").histograms([((), values)]))
    assert page == [
        'kvgate_x_seconds_bucket{le="1.0"} 1.0',
        'kvgate_x_seconds_bucket{le="+Inf"} 1.0',
        "kvgate_x_seconds_count 1.0",
        "kvgate_x_seconds_sum 0.5",
    ]


def test_counters_of_processes_are_added_and_gauges_are_not() -> None:
    assert counter("kvgate_x_total", "X.").merge is histogram("kvgate_x_seconds", "X.").merge is Merge.SUM
    assert gauge("kvgate_x", "X.").merge is Merge.MAX
