"""The roster of workers: awaited, probed, watched and dropped; and what is notified of that."""

from collections.abc import Collection, Sequence

from prometheus_client.registry import Collector

from engines import KV_CONNECTORS
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.feeds import FeedsPart
from gateway.app.parts.fleet import FleetPart
from gateway.app.parts.index import IndexPart
from gateway.app.parts.lifecycle import LifecyclePart
from gateway.app.parts.open_requests import OpenRequests
from gateway.app.parts.prompts import PromptsPart
from gateway.app.parts.proofs import ProofsPart
from gateway.app.parts.routing import RoutingPart
from gateway.app.parts.upstream import UpstreamPart
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.config import Config
from gateway.core.engine import EngineMetrics, EventSource
from gateway.core.worker import Worker, WorkerId
from gateway.discovery import lifecycle_metrics
from gateway.discovery.bootstrap import with_engine_ids
from gateway.discovery.claims import with_addresses
from gateway.discovery.endpoint import EventSubscription
from gateway.discovery.lifecycle import keep_leaving
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


class RosterPart(Component):
    metric_sections = (("Worker lifecycle", lifecycle_metrics.METRICS),)

    def __init__(
        self,
        config: Config,
        fleet: FleetPart,
        workers: WorkerAccessPart,
        index: IndexPart,
        feeds: FeedsPart,
        prompts: PromptsPart,
        proofs: ProofsPart,
        lifecycle: LifecyclePart,
        upstream: UpstreamPart,
        routing: RoutingPart,
        verifier: Verifier,
        requests: OpenRequests,
    ) -> None:
        self._fleet, self._workers, self._feeds = fleet.fleet, workers, feeds
        self._prompts, self._proofs, self._verifier = prompts, proofs, verifier
        self._lifecycle, self._upstream = lifecycle.lifecycle, upstream
        bans, pools, catalog = routing.disaggregation_stats.policy, upstream.pools, prompts.catalog
        self._pairs = PairParity(fleet.fleet, bans, prompts.prober, self.tasks.start)
        self._events_port = config.events.port
        self.roster = Roster(
            fleet=fleet.fleet,
            index=index.index,
            assumed=index.assumed,
            metrics=fleet.metrics,
            make_probe=self._probe,
            open_feed=self._open_feed,
            on_gone=self._gone,
            on_down=requests.worker_down,
            declared=workers.declared,
            names=ServedNames(fleet.fleet, catalog.renamed),
            on_joined=[self._lifecycle.joined, catalog.joined, self._pairs.joined],
            on_left=[
                routing.disaggregation_stats.drop_worker,
                routing.router.learning.drop,
                feeds.blocks.drop,
                self._lifecycle.left,
                catalog.left,
            ],
            complete=self._complete,
            on_look=self._looked,
            heard=Heard(pools.num_reads, pools.num_opened),
            options=options_of(config),
        )
        proofs.known = lambda: [endpoint.facts for endpoint in self.roster]

    async def start(self, tasks: Tasks) -> None:
        tasks.start("let go of workers", keep_leaving(self._lifecycle, self.roster))
        unserved = warn_of_unserved(self._prompts.catalog, self._fleet, self.roster.has_all_joined)
        tasks.start("look for unserved tokenizers", unserved)

    async def stop(self) -> None:
        await self.roster.stop()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return lambda: self.roster.look_every(change.config.lifecycle.probe_interval_s)

    def collectors(self) -> Sequence[Collector]:
        return [LifecycleCollector(self._fleet, self._lifecycle, self._joining)]

    def suspect(self, worker: WorkerId, why: str, is_refused: bool) -> None:
        """Probe a worker at which a request failed."""
        self.roster.suspect(worker, why, is_refused=is_refused)

    def _joining(self) -> list[str]:
        return [endpoint.url for endpoint in self.roster if endpoint.facts is None]

    def _probe(self, url: str) -> Probe:
        workers = self._workers
        port, _ = workers.declared.event_ports.get(url, (self._events_port, 0))
        return Probe(url, workers.engines, workers.session, workers.headers, port)

    def _open_feed(self, worker: Worker, source: EventSource) -> tuple[Feed, EventSubscription]:
        roster, is_sized = self.roster, worker.url in self._workers.declared.block_sizes
        return self._feeds.feeds.open(
            worker,
            source,
            self._workers.session,
            roster.stream_changed,
            roster.start_time_s(worker.url),
            None if is_sized else roster.block_size_shown,
        )

    def _gone(self, url: str, workers: Collection[WorkerId]) -> None:
        self._upstream.pools.drop(url)
        self._lifecycle.dropped(url, workers)
        self._proofs.drop(url)

    def _looked(self, worker: WorkerId, metrics: EngineMetrics | None) -> None:
        self._verifier.scraped(worker, metrics)
        self._lifecycle.looked(worker, metrics)

    async def _complete(self, probe: Probe, facts: Facts) -> Facts:
        facts = await with_addresses(facts, self._workers.access.reachable)
        await self._proofs.prove(facts)
        return await with_engine_ids(facts, self._workers.declared, KV_CONNECTORS, probe)


def options_of(config: Config) -> RosterOptions:
    return RosterOptions(
        probe_interval_s=config.lifecycle.probe_interval_s,
        assumed_keep_s=config.events.assumed_keep_s,
        use_events=config.events.mode == "auto",
        events_port=config.events.port,
        replay_port=config.events.replay_port,
        max_feeds=descriptors().max_feeds,
    )
