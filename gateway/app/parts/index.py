"""The index of workers' blocks, and what gateways share of their events."""

from collections.abc import Mapping, Sequence

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import index_handlers
from gateway.app.component import Component
from gateway.app.index_backend import backend_of
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index, Losses
from gateway.index.memory_sweep import keep_swept
from gateway.replication import metrics as replication
from gateway.replication import tree_metrics
from gateway.replication.metrics import ReplicaCollector
from gateway.runtime.tasks import Tasks


class IndexPart(Component):
    """Index of the configured backend.

    assumed  blocks that requests have put at workers, until events say so
    shared   replication through Redis; None where gateways share no events
    """

    metric_sections = (
        ("Replication through Redis", replication.METRICS),
        ("Index in Redis", tree_metrics.METRICS),
    )

    def __init__(self, config: Config, fleet: Fleet, assumed: AssumedIndex, losses: Losses) -> None:
        """Make the index. Raises ConfigError."""
        self._fleet = fleet
        self._backend = backend_of(config, losses)
        self.index: Index = self._backend.index
        self.fetch = self._backend.fetch
        self.assumed = assumed
        self.shared = self._backend.share(assumed)

    async def start(self, tasks: Tasks) -> None:
        """Start to share and to sweep. Raises ConfigError for a Redis that cannot be used."""
        if self.shared:
            await self.shared.start(tasks)
        if self._backend.run:
            tasks.start("index backend", self._backend.run())
        tasks.start("sweep index", keep_swept(self.index))

    async def stop(self) -> None:
        if self.shared:
            await self.shared.close()

    def collectors(self) -> Sequence[Collector]:
        return [*([ReplicaCollector(self.shared)] if self.shared else ()), *self._backend.collectors]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return index_handlers(self._fleet, self.index, self.assumed)
