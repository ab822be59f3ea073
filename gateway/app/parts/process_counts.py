"""Counts of requests, workers, streams, index and event loop of one process."""

from collections.abc import Collection, Sequence

from prometheus_client.registry import Collector

from gateway.app.component import Component
from gateway.app.parts.fleet import FleetPart
from gateway.app.parts.index import IndexPart
from gateway.core.ledger import Ledger
from gateway.discovery.roster import Roster
from gateway.observability import collector
from gateway.observability.collector import MetricsCollector
from gateway.runtime.build import VERSION, is_compiled
from gateway.runtime.loop_lag import LoopLag
from gateway.runtime.tasks import Tasks


class ProcessCountsPart(Component):
    metric_sections = (("Requests, workers, event streams, index, event loop", collector.METRICS),)

    def __init__(
        self,
        fleet: FleetPart,
        ledger: Ledger,
        index: IndexPart,
        roster: Roster,
        connections: Collection[object],
    ) -> None:
        metrics = fleet.metrics
        self._lag = LoopLag(metrics.loop_lag_s.observe, metrics.loop_lag_cpu_s.observe)
        self._collector = MetricsCollector(
            metrics,
            fleet.fleet,
            ledger,
            index.index,
            index.assumed,
            roster.stream_counts,
            lambda: len(connections),
            (VERSION, is_compiled),
        )

    async def start(self, tasks: Tasks) -> None:
        self._lag.start()

    async def stop(self) -> None:
        self._lag.stop()

    def collectors(self) -> Sequence[Collector]:
        return [self._collector]
