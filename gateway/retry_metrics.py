"""What is tried again, as Prometheus sees it."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.retries import Retries


class RetriesCollector(Collector):
    def __init__(self, retries: Retries) -> None:
        self._retries = retries

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        retries = self._retries
        yield GaugeMetricFamily(
            "kvgate_retries_in_flight", "Requests in flight that are retries", value=retries.num_retrying
        )
        yield CounterMetricFamily(
            "kvgate_retries_denied", "Requests not tried again: too many were", value=retries.num_denied
        )
