"""Metrics of the recovery of BLIND event streams."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.blind_recovery import RecoveryObserver
from gateway.observability.metric_spec import MetricSpec, counter, gauge

_READ: tuple[tuple[MetricSpec, Callable[[BlindRecovery], float]], ...] = (
    (
        gauge(
            "kvgate_recovery_proven_blocks",
            "Blocks that answers proved to be cached and that have no known engine hash.",
            "worker",
        ),
        lambda h: len(h.proofs),
    ),
    (
        gauge(
            "kvgate_recovery_orphan_blocks",
            "Stored blocks kept aside until the parent block is known.",
            "worker",
        ),
        lambda h: h.orphans.num_blocks,
    ),
    (
        counter(
            "kvgate_recovery_adopted_orphan_blocks_total",
            "Orphan blocks added to the index after the parent block became known.",
            "worker",
        ),
        lambda h: h.counts.num_placed,
    ),
    (
        counter(
            "kvgate_recovery_disproven_blocks_total",
            "Proven blocks that a later answer proved to be evicted.",
            "worker",
        ),
        lambda h: h.counts.num_withdrawn,
    ),
    (
        counter(
            "kvgate_recovery_announcements_total",
            "Requests sent with an option that makes the engine announce the cached prefix.",
            "worker",
        ),
        lambda h: h.counts.num_reports,
    ),
)

METRICS = tuple(spec for spec, _ in _READ)


class RecoveryCollector(Collector):
    def __init__(self, recovery_observer: RecoveryObserver) -> None:
        self._recovery_observer = recovery_observer

    def collect(self) -> Iterator[Metric]:
        for spec, read in _READ:
            yield spec.family((worker, read(healing)) for worker, healing in self._recovery_observer.items())
