"""Metrics of replication through Redis: lag, leadership, resyncs."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import MetricSpec, counter, gauge, histogram

if TYPE_CHECKING:  # else the reference of metrics, which each start reads, would load the library for Redis
    from gateway.replication.replica_feed import ReplicaFeed
    from gateway.replication.session import ReplicationSession

UP = gauge("kvgate_redis_up", "1 if Redis answers and accepts kvgate's commands, else 0.")
LOSSES = counter("kvgate_redis_connection_losses_total", "Lost connections to Redis.")
DELAY = histogram(
    "kvgate_replica_delay_seconds",
    "Time in seconds from the write of a change to Redis to the update of the index here, by Redis's clock.",
)

_READ: tuple[tuple[MetricSpec, Callable[["ReplicaFeed"], float]], ...] = (
    (
        gauge(
            "kvgate_replica_leader",
            "1 if this gateway reads the worker's KV events and publishes the log in Redis, else 0.",
            "worker",
        ),
        lambda f: float(f.leader is not None),
    ),
    (
        gauge(
            "kvgate_replica_queued_batches",
            "KV event batches that the leader has read and not yet written to Redis.",
            "worker",
        ),
        lambda f: f.leader.num_queued if f.leader else 0,
    ),
    (
        counter(
            "kvgate_replica_takeovers_total",
            "Takeovers of the worker's log in Redis from another gateway.",
            "worker",
        ),
        lambda f: f.counts.num_takeovers,
    ),
    (
        counter(
            "kvgate_replica_fenced_writes_total",
            "Writes that Redis rejected because the lease belonged to another gateway.",
            "worker",
        ),
        lambda f: f.counts.num_fenced,
    ),
    (
        counter(
            "kvgate_replica_log_rewrites_total",
            "Rewrites of the worker's log in Redis from a new snapshot.",
            "worker",
        ),
        lambda f: f.counts.num_rewrites,
    ),
    (
        counter(
            "kvgate_replica_resyncs_total",
            "Resyncs of the worker's blocks from the snapshot in Redis.",
            "worker",
        ),
        lambda f: f.counts.num_resyncs,
    ),
)

METRICS = (UP, LOSSES, DELAY, *(spec for spec, _ in _READ))


class ReplicaCollector(Collector):
    def __init__(self, shared: "ReplicationSession") -> None:
        self._shared = shared

    def collect(self) -> Iterator[Metric]:
        shared = self._shared
        yield UP.single(float(not (shared.is_lost or shared.error_reporter)))
        yield LOSSES.single(shared.tail.num_losses)
        yield DELAY.histograms([((), shared.delays_s)])
        for spec, read in _READ:
            yield spec.family((worker, read(feed)) for worker, feed in shared.feeds.items())
