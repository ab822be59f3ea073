"""Feeds of workers' KV events into the index."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gateway.app.component import Component
from gateway.app.parts.event_streams import EventStreamsPart
from gateway.app.parts.index import IndexPart
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.config import Config
from gateway.core.block_limits import FLEET, BlockLimits, FleetBlocks, block_limits
from gateway.core.engine import EventSource
from gateway.core.worker import Worker
from gateway.discovery.feeds import Feeds
from gateway.observability.verification.tapped_index import TappedIndex
from gateway.observability.verification.verifier import Verifier
from gateway.replication.agent_feeds import AgentFeeds


class FeedsPart(Component):
    """Factory of feeds; `blocks` counts those of all workers together."""

    def __init__(
        self,
        config: Config,
        workers: WorkerAccessPart,
        index: IndexPart,
        streams: EventStreamsPart,
        verifier: Verifier,
    ) -> None:
        self._probe_timeout_s = config.lifecycle.probe_timeout_s
        self.blocks = FleetBlocks(FLEET * config.index.max_worker_blocks)
        self.feeds = Feeds(
            limits_of=limits_of(config, self.blocks),
            engine_of=workers.engines.named,
            index=TappedIndex(index.index, verifier.heard),
            assumed=index.assumed,
            headers=workers.headers,
            tasks=self.tasks,
            agents=AgentFeeds(workers.agents, index=index.index, assumed=index.assumed, tasks=self.tasks),
            recovery_observer=streams.recovery_observer,
            shared=index.shared,
            access=workers.access,
            owners=streams.owners,
        )

    async def stop(self) -> None:
        self.feeds.close()

    async def reach(self, worker: Worker, source: EventSource) -> str | None:
        """Try to reach a worker's events and replay endpoint. Returns None, or the obstacle."""
        return await self.feeds.reach(worker, source, self._probe_timeout_s)


def limits_of(config: Config, blocks: FleetBlocks) -> Callable[[Worker], BlockLimits]:
    most, offloaded = config.index.max_worker_blocks, config.index.offload_blocks

    def of(worker: Worker) -> BlockLimits:
        limits = block_limits(worker.num_blocks, most=most, offloaded=offloaded)
        return replace(limits, of_fleet=partial(blocks.exceeded, worker))

    return of
