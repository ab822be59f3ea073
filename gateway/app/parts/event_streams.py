"""Proof and recovery of workers' event streams, by what requests show."""

from collections.abc import Sequence

from prometheus_client.registry import Collector

from gateway.app.component import Component, RoutingObserver
from gateway.config import Config
from gateway.discovery import recovery_metrics as recovery
from gateway.discovery.recovery_metrics import RecoveryCollector
from gateway.index.base import Index
from gateway.ingest.blind_recovery import RecoveryObserver, keep_recovering
from gateway.ingest.ownership import OwnershipObserver, keep_proving
from gateway.runtime.tasks import Tasks


class EventStreamsPart(Component):
    metric_sections = (("Recovery of BLIND event streams", recovery.METRICS),)

    def __init__(self, config: Config, index: Index) -> None:
        self.owners = OwnershipObserver(index)
        self.recovery_observer = RecoveryObserver(index, keep_s=config.events.assumed_keep_s)

    async def start(self, tasks: Tasks) -> None:
        tasks.start("heal streams", keep_recovering(self.recovery_observer))
        tasks.start("prove streams", keep_proving(self.owners))

    def collectors(self) -> Sequence[Collector]:
        return [RecoveryCollector(self.recovery_observer)]

    def observers(self) -> Sequence[RoutingObserver]:
        return [
            RoutingObserver(self.recovery_observer.decided, self.recovery_observer.answered),
            RoutingObserver(self.owners.decided, finished=self.owners.finished),
        ]
