"""Metrics of the decision service."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, counter, gauge

DECISIONS = counter(
    "kvgate_decide_events_total",
    "Events of the decision service, by kind: decided, queued, rejected, report, repeated_report, "
    "unknown_report, expired, client_disconnected, malformed.",
    "kind",
)
OPEN = gauge(
    "kvgate_decide_open", "Decisions that wait for a worker, or are booked and not reported.", merge=Merge.SUM
)

METRICS = (DECISIONS, OPEN)


class DecideCollector(Collector):
    def __init__(self, counts: Mapping[str, int], num_open: Callable[[], int]) -> None:
        self._counts, self._num_open = counts, num_open

    def collect(self) -> Iterator[Metric]:
        yield DECISIONS.family(((kind,), num) for kind, num in self._counts.items())
        yield OPEN.single(self._num_open())
