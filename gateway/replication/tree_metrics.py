"""How the tree in Redis answers, as Prometheus sees it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metrics import Histogram

if TYPE_CHECKING:
    from gateway.index.redis_tree.service import RadixService

LOOKUP_BOUNDS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)


class TreeCollector(Collector):
    def __init__(self, service: "RadixService") -> None:
        self._service = service
        self._lookups_s = Histogram(LOOKUP_BOUNDS_S)
        service.observe = self._lookups_s.observe

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        service = self._service
        up = GaugeMetricFamily("kvgate_tree_up", "1 if the tree in Redis is looked up in and written")
        up.add_metric([], float(service.is_open))
        losses = CounterMetricFamily("kvgate_tree_losses", "Times that it was lost")
        losses.add_metric([], service.num_lost)
        taken = HistogramMetricFamily(
            "kvgate_tree_lookup_seconds", "From a lookup's question to its answer, where there was one"
        )
        taken.add_metric([], self._lookups_s.buckets(), self._lookups_s.sum)
        failed = CounterMetricFamily(
            "kvgate_tree_failed_lookups",
            "Lookups without an answer: requests were routed by what this gateway knows",
            labels=["reason"],
        )
        for reason, num in service.failed_lookups.items():
            failed.add_metric([reason], num)
        broken = CounterMetricFamily(
            "kvgate_tree_broken_edges", "Edges that did not decode: they were dropped and told again"
        )
        broken.add_metric([], service.num_broken)
        queued = GaugeMetricFamily(
            "kvgate_tree_queued_blocks", "Changes applied here and not yet in the tree"
        )
        queued.add_metric([], service.index.num_queued)
        yield from (up, losses, taken, failed, broken, queued)
