"""What is tried again, and how much of requests is held, as Prometheus sees it."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.proxy.retries import Retries
from gateway.server.body_budget import Bodies


class RetriesCollector(Collector):
    def __init__(self, retries: Retries, bodies: Bodies) -> None:
        self._retries, self._bodies = retries, bodies

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
        bodies = self._bodies
        yield GaugeMetricFamily("kvgate_bodies_bytes", "Of request bodies held", value=bodies.num_bytes)
        yield GaugeMetricFamily("kvgate_bodies_limit_bytes", "--max-bodies-bytes", value=bodies.max_bytes)
        yield CounterMetricFamily(
            "kvgate_bodies_refused", "Requests refused for want of room", value=bodies.num_refused
        )
