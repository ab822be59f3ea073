"""Warming of workers that join with an empty cache."""

import asyncio
from collections.abc import Sequence

from prometheus_client.registry import Collector

from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.index import IndexPart
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.bookings.shared_memory import ProcessView
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.core.worker import WorkerId
from gateway.discovery.lifecycle import Lifecycle
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from gateway.warming import metrics as warming
from gateway.warming.hot_prefixes import HotPrefixes
from gateway.warming.metrics import WarmingCollector
from gateway.warming.sender import PrefixSender
from gateway.warming.warmer import Warmer, WarmingLimits, WarmingSources

FORGET_EVERY_S = 5.0
"""Interval at which old prefixes are forgotten, also without requests."""


class WarmingPart(Component):
    """Warmer, which observes decisions while it is enabled. Of several processes the first one warms, by the
    requests that it gets."""

    metric_sections = (("Warming of joining workers", warming.METRICS),)

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        workers: WorkerAccessPart,
        index: IndexPart,
        router: Router,
        lifecycle: Lifecycle,
        place: ProcessView | None,
    ) -> None:
        self._router, self._is_first = router, place is None or place.is_first
        sources = WarmingSources(
            fleet,
            index.index,
            index.assumed,
            router.ledger,
            PrefixSender(workers.session, workers.headers).send,
            lambda engine: workers.engines.named(engine).lowest_priority,
            self._freed,
            lifecycle.hold,
            lifecycle.warmed,
        )
        options = config.warming
        self.warmer = Warmer(sources, HotPrefixes(options.keep_bytes, options.keep_s), WarmingLimits())
        lifecycle.on_cold.append(self.warmer.joined)
        self._apply(config)

    async def start(self, tasks: Tasks) -> None:
        tasks.start("forget prefixes", self._keep_forgetting())

    async def stop(self) -> None:
        await self.warmer.stop()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return lambda: self._apply(change.config)

    def collectors(self) -> Sequence[Collector]:
        return [WarmingCollector(self.warmer.counts, self.warmer.prefixes)]

    def _apply(self, config: Config) -> None:
        options, prefixes = config.warming, self.warmer.prefixes
        prefixes.max_bytes, prefixes.keep_s = options.keep_bytes, options.keep_s
        share = options.share if self._is_first else 0.0
        self.warmer.limits = WarmingLimits(share, options.max_prefixes, options.max_s, options.hold_s)
        observers, decided = self._router.observers.decided, self.warmer.decided
        if share and decided not in observers:
            observers.append(decided)
        elif not share:
            self.warmer.end()
            if decided in observers:
                observers.remove(decided)

    async def _keep_forgetting(self) -> None:
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            self.warmer.forget()

    def _freed(self, worker: WorkerId) -> None:
        if self._router.on_freed is not None:
            self._router.on_freed(worker)
