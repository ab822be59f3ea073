"""How gateways that share Redis keep up, as Prometheus sees it."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.replication.replica_feed import ReplicaFeed
from gateway.replication.session import Shared


class ReplicaCollector(Collector):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        shared = self._shared
        up = GaugeMetricFamily("kvgate_redis_up", "1 if Redis answers, and does what it is asked")
        up.add_metric([], float(not (shared.is_lost or shared.trouble)))
        losses = CounterMetricFamily("kvgate_redis_losses", "Times that Redis was lost")
        losses.add_metric([], shared.tail.num_losses)
        delays = HistogramMetricFamily(
            "kvgate_replica_delay_seconds", "From a change's writing in Redis to our index, by its clock"
        )
        delays.add_metric([], shared.delays_s.buckets(), shared.delays_s.sum)
        yield from (up, losses, delays)
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, read in metrics:
                family = kind(f"kvgate_replica_{name}", text, labels=["worker"])
                for worker, feed in shared.feeds.items():
                    family.add_metric([worker], read(feed))
                yield family


_Metrics = tuple[tuple[str, str, Callable[[ReplicaFeed], float]], ...]

_GAUGES: _Metrics = (
    ("holds", "1 if this gateway reads the worker's events for all", lambda f: float(f.holding is not None)),
    ("queued", "Batches read and not yet in Redis", lambda f: f.holding.num_queued if f.holding else 0),
)
_COUNTERS: _Metrics = (
    ("takeovers", "Times that another gateway's log was gone on with", lambda f: f.counts.num_takeovers),
    ("fenced", "Writes refused since the lease was no longer ours", lambda f: f.counts.num_fenced),
    ("rewrites", "Times that the log in Redis was begun anew", lambda f: f.counts.num_rewrites),
    ("resyncs", "Times that all was read from Redis again", lambda f: f.counts.num_resyncs),
)
