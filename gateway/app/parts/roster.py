"""The roster of workers: awaited, probed, watched and dropped; and what is notified of that."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prometheus_client.registry import Collector

from engines import KV_CONNECTORS
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.feeds import FeedsPart
from gateway.app.parts.fleet import FleetPart
from gateway.app.parts.index import IndexPart
from gateway.app.parts.open_requests import OpenRequests
from gateway.app.parts.prompts import PromptsPart
from gateway.app.parts.proofs import ProofsPart
from gateway.app.parts.routing import RoutingPart
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.config import Config
from gateway.core.engine import EngineMetrics, EventSource
from gateway.core.worker import Worker, WorkerId
from gateway.discovery import lifecycle_metrics
from gateway.discovery.bootstrap import with_engine_ids
from gateway.discovery.claims import with_addresses
from gateway.discovery.endpoint import EventSubscription
from gateway.discovery.lifecycle import Lifecycle, keep_leaving
from gateway.discovery.lifecycle_metrics import LifecycleCollector
from gateway.discovery.probe import Probe
from gateway.discovery.probed import Facts
from gateway.discovery.roster import Roster, RosterOptions
from gateway.discovery.served_models import ServedNames
from gateway.discovery.signs_of_life import Heard
from gateway.ingest.base import Feed
from gateway.models.catalog import warn_of_unserved
from gateway.observability.verification.verifier import Verifier
from gateway.parity.pairs import PairParity
from gateway.runtime.process_limits import descriptors
from gateway.runtime.tasks import Tasks
from gateway.upstream.pools import Pools


@dataclass(eq=False, repr=False)
class RosterPart(Component):
    """Roster, and the parts that it notifies."""

    metric_sections = (("Worker lifecycle", lifecycle_metrics.METRICS),)

    config: Config
    fleet: FleetPart
    workers: WorkerAccessPart
    index: IndexPart
    feeds: FeedsPart
    prompts: PromptsPart
    proofs: ProofsPart
    lifecycle: Lifecycle
    pools: Pools
    routing: RoutingPart
    verifier: Verifier
    requests: OpenRequests

    def __post_init__(self) -> None:
        fleet, stats, catalog = self.fleet.fleet, self.routing.disaggregation_stats, self.prompts.catalog
        pairs = PairParity(fleet, stats.policy, self.prompts.prober, self.tasks.start)
        left = [stats.drop_worker, self.routing.router.learning.drop, self.feeds.blocks.drop]
        self.roster = Roster(
            fleet=fleet,
            index=self.index.index,
            assumed=self.index.assumed,
            metrics=self.fleet.metrics,
            make_probe=self._probe,
            open_feed=self._open_feed,
            on_gone=self._gone,
            on_down=self.requests.worker_down,
            declared=self.workers.declared,
            names=ServedNames(fleet, catalog.renamed),
            on_joined=[self.lifecycle.joined, catalog.joined, pairs.joined],
            on_restarted=self.lifecycle.restarted,
            on_left=[*left, self.lifecycle.left, catalog.left],
            complete=self._complete,
            on_look=self._looked,
            heard=Heard(self.pools.num_reads, self.pools.num_opened),
            options=options_of(self.config),
        )
        self.proofs.known = lambda: [endpoint.facts for endpoint in self.roster]

    async def start(self, tasks: Tasks) -> None:
        tasks.start("let go of workers", keep_leaving(self.lifecycle, self.roster))
        unserved = warn_of_unserved(self.prompts.catalog, self.fleet.fleet, self.roster.has_all_joined)
        tasks.start("look for unserved tokenizers", unserved)

    async def stop(self) -> None:
        await self.roster.stop()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return lambda: self.roster.look_every(change.config.lifecycle.probe_interval_s)

    def collectors(self) -> Sequence[Collector]:
        return [LifecycleCollector(self.fleet.fleet, self.lifecycle, self._joining)]

    def suspect(self, worker: WorkerId, why: str, is_refused: bool) -> None:
        """Probe a worker at which a request failed."""
        self.roster.suspect(worker, why, is_refused=is_refused)

    def _joining(self) -> list[str]:
        return [endpoint.url for endpoint in self.roster if endpoint.facts is None]

    def _probe(self, url: str) -> Probe:
        workers = self.workers
        port, _ = workers.declared.event_ports.get(url, (self.config.events.port, 0))
        return Probe(url, workers.engines, workers.session, workers.headers, port)

    def _open_feed(self, worker: Worker, source: EventSource) -> tuple[Feed, EventSubscription]:
        roster, is_sized = self.roster, worker.url in self.workers.declared.block_sizes
        return self.feeds.feeds.open(
            worker,
            source,
            self.workers.session,
            roster.stream_changed,
            roster.start_time_s(worker.url),
            None if is_sized else roster.block_size_shown,
        )

    def _gone(self, url: str, workers: Collection[WorkerId]) -> None:
        self.pools.drop(url)
        self.lifecycle.dropped(url, workers)
        self.proofs.drop(url)

    def _looked(self, worker: WorkerId, metrics: EngineMetrics | None) -> None:
        self.verifier.scraped(worker, metrics)
        self.lifecycle.looked(worker, metrics)

    async def _complete(self, probe: Probe, facts: Facts) -> Facts:
        facts = await with_addresses(facts, self.workers.access.reachable)
        await self.proofs.prove(facts)
        return await with_engine_ids(facts, self.workers.declared, KV_CONNECTORS, probe)


def options_of(config: Config) -> RosterOptions:
    return RosterOptions(
        probe_interval_s=config.lifecycle.probe_interval_s,
        assumed_keep_s=config.events.assumed_keep_s,
        use_events=config.events.mode == "auto",
        events_port=config.events.port,
        replay_port=config.events.replay_port,
        max_feeds=descriptors().max_feeds,
    )
