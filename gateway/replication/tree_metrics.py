"""Metrics of the index in Redis (`--index redis`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import counter, gauge, histogram
from gateway.observability.metrics import Histogram

if TYPE_CHECKING:
    from gateway.index.redis_tree.service import RadixService

LOOKUP_BOUNDS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)

UP = gauge("kvgate_redis_tree_up", "1 if the index in Redis is in use, else 0.")
LOSSES = counter("kvgate_redis_tree_connection_losses_total", "Lost connections to the index in Redis.")
LOOKUPS = histogram(
    "kvgate_redis_tree_lookup_duration_seconds", "Duration of successful lookups in Redis in seconds."
)
FAILED = counter(
    "kvgate_redis_tree_failed_lookups_total",
    "Lookups in Redis without an answer, by reason; the request was routed by this gateway's own index.",
    "reason",
)
UNDECODABLE = counter(
    "kvgate_redis_tree_undecodable_edges_total",
    "Edges of the tree in Redis that could not be decoded, and were dropped and published again.",
)
QUEUED = gauge(
    "kvgate_redis_tree_queued_changes", "Changes to blocks applied here and not yet written to Redis."
)

METRICS = (UP, LOSSES, LOOKUPS, FAILED, UNDECODABLE, QUEUED)


class TreeCollector(Collector):
    def __init__(self, service: "RadixService") -> None:
        self._service = service
        self._lookups_s = Histogram(LOOKUP_BOUNDS_S)
        service.observe = self._lookups_s.observe

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield UP.single(float(service.is_open))
        yield LOSSES.single(service.num_lost)
        yield LOOKUPS.histograms([((), self._lookups_s)])
        yield FAILED.family(service.failed_lookups.items())
        yield UNDECODABLE.single(service.num_broken)
        yield QUEUED.single(service.index.publication.num_queued)
