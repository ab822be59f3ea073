"""The parts of a gateway that know its workers, and the observers of their changes."""

from asyncio import Task
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engines import KV_CONNECTORS
from gateway.config import Config
from gateway.core.block_limits import BlockLimits, FleetBlocks, block_limits
from gateway.core.eligibility import Eligibility
from gateway.core.engine import EngineMetrics
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.bootstrap import with_engine_ids
from gateway.discovery.claims import with_addresses
from gateway.discovery.dns import Resolver
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.kubernetes.membership import Membership
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.discovery.kubernetes.watched_sources import KubernetesSources
from gateway.discovery.lifecycle import Lifecycle, RemainingWork
from gateway.discovery.name_prober import NameProber
from gateway.discovery.outlier_detection import OutlierRules
from gateway.discovery.probe import Probe
from gateway.discovery.probed import Facts
from gateway.discovery.roster import Roster, RosterOptions
from gateway.discovery.salt_prober import SaltProber, keep_proving
from gateway.discovery.served_models import ServedNames
from gateway.discovery.signs_of_life import Heard
from gateway.discovery.sources import Sources
from gateway.runtime.process_limits import descriptors

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway


Start = Callable[[str, Coroutine[Any, Any, None]], object]
"""Runs a task in the background."""


def limits_of(config: Config, blocks: FleetBlocks) -> Callable[[Worker], BlockLimits]:
    most, offloaded = config.index.max_worker_blocks, config.index.offload_blocks

    def of(worker: Worker) -> BlockLimits:
        limits = block_limits(worker.num_blocks, most=most, offloaded=offloaded)
        return replace(limits, of_fleet=partial(blocks.exceeded, worker))

    return of


def standings_of(gateway: "Gateway") -> Lifecycle:
    config, ledger = gateway.config, gateway.router.ledger
    return Lifecycle(
        gateway.fleet,
        RemainingWork(
            in_flight=lambda worker: ledger.load(worker).num_in_flight,
            unstarted_tokens=lambda worker: ledger.load(worker).booked_tokens,
            fetching=lambda worker: gateway.legs.num_fetching(worker),
        ),
        num_answered=lambda worker: gateway.metrics.worker(worker).num_answered,
        observers=gateway.observers,
        on_ejected=lambda worker, why: gateway.dispatch.worker_down(worker, why),
        rules=OutlierRules(
            config.lifecycle.eject_after_failures,
            config.lifecycle.eject_s,
            config.lifecycle.stalled_after_s,
            config.lifecycle.max_ejected_percent,
        ),
        slow_start_s=config.lifecycle.slow_start_s,
    )


def roster_of(gateway: "Gateway") -> Roster:
    config = gateway.config

    def probe(url: str) -> Probe:
        session = gateway.session
        port, _ = gateway.declared.event_ports.get(url, (config.events.port, 0))
        return Probe(url, gateway.engines, session, gateway.worker_headers, port)

    options = RosterOptions(
        probe_interval_s=config.lifecycle.probe_interval_s,
        assumed_keep_s=config.events.assumed_keep_s,
        use_events=config.events.mode == "auto",
        events_port=config.events.port,
        replay_port=config.events.replay_port,
        max_feeds=descriptors().max_feeds,
    )
    return _roster(gateway, probe, options)


def _roster(gateway: "Gateway", probe: Callable[[str], Probe], options: RosterOptions) -> Roster:
    """The roster, with its observers."""

    def gone(url: str, workers: Collection[WorkerId]) -> None:
        gateway.pools.drop(url)
        gateway.lifecycle.dropped(url, workers)
        gateway.salt_prober.drop(url)
        gateway.name_prober.drop(url)

    def looked(worker: WorkerId, metrics: EngineMetrics | None) -> None:
        gateway.verifier.scraped(worker, metrics)
        gateway.lifecycle.looked(worker, metrics)

    async def complete(probe: Probe, facts: Facts) -> Facts:
        facts = await with_addresses(facts, gateway.access.reachable)
        await _prove(gateway, facts)
        return await with_engine_ids(facts, gateway.declared, KV_CONNECTORS, probe)

    return Roster(
        fleet=gateway.fleet,
        index=gateway.index,
        assumed=gateway.assumed,
        metrics=gateway.metrics,
        make_probe=probe,
        open_feed=gateway.open_feed,
        on_gone=gone,
        on_down=gateway.dispatch.worker_down,
        declared=gateway.declared,
        names=ServedNames(gateway.fleet, gateway.catalog.renamed),
        on_joined=[gateway.lifecycle.joined, gateway.catalog.joined, gateway.pair_parity.joined],
        on_left=_on_left(gateway),
        complete=complete,
        on_look=looked,
        heard=Heard(gateway.pools.num_reads, gateway.pools.num_opened),
        options=options,
    )


def _on_left(gateway: "Gateway") -> list[Callable[[WorkerId], None]]:
    """Observers of workers that leave the fleet."""
    return [
        gateway.disaggregation_stats.drop_worker,
        gateway.router.learning.drop,
        gateway.blocks.drop,
        gateway.lifecycle.left,
        gateway.catalog.left,
    ]


async def _prove(gateway: "Gateway", facts: Facts) -> None:
    """Have an endpoint prove what it does with salts and with unknown names, before it joins."""
    changed = [await gateway.salt_prober.prove(facts), await gateway.name_prober.prove(facts)]
    if any(changed):
        gateway.fleet.judge_again()


def name_prober_of(gateway: "Gateway") -> NameProber:
    async def ask(url: str, path: str, body: object) -> bytes | None:
        return await gateway.session.post(url, path, body, gateway.worker_headers)

    return NameProber(gateway.fleet.eligibility or Eligibility({}), ask)


def salt_prober_of(gateway: "Gateway", start: Start) -> SaltProber:
    """The salt prober; asks in the background again where nothing was proven."""
    fleet, session = gateway.fleet, gateway.session

    async def ask(url: str, path: str, body: object, headers: Mapping[str, str]) -> bytes | None:
        return await session.post(url, path, body, {**gateway.worker_headers, **headers})

    prober = SaltProber(fleet.eligibility or Eligibility({}), ask)

    def known() -> list[Facts | None]:
        return [endpoint.facts for endpoint in gateway.roster]

    if fleet.eligibility is not None and fleet.eligibility.needs_salt:
        start("prove salts", keep_proving(prober, known, fleet.judge_again))
    return prober


def inherit_settings(gateway: "Gateway", url: str, source: str, host: str) -> None:
    """Copy the settings of a source to one of its workers, which is verified by the name `host`."""
    gateway.access.inherit(url, source, host if url.startswith("https:") else "")
    gateway.declared.inherit(url, source)
    gateway.engines.inherit(url, source)
    if source in gateway.agents.named:
        gateway.agents.named[url] = gateway.agents.named[source]


def sources_of(gateway: "Gateway", start: Callable[[str, Coroutine[Any, Any, None]], Task[Any]]) -> Sources:
    """Names and Kubernetes objects to be looked up; `start` runs a task in the background."""

    inherit = partial(inherit_settings, gateway)
    roster, lifecycle, reachable = gateway.roster, gateway.lifecycle, gateway.access.reachable
    kubernetes, interval_s = gateway.config.kubernetes, gateway.config.lifecycle.dns_interval_s
    return Sources(
        Resolver(roster, lifecycle, inherit=inherit, reachable=reachable, interval_s=interval_s),
        KubernetesSources(
            Membership(roster, lifecycle, inherit=inherit, reachable=reachable),
            start,
            cluster=partial(cluster_access, kubernetes),
            times=WatchTimes(kubernetes.relist_s, kubernetes.silence_s),
        ),
    )


def suspect(gateway: "Gateway", worker: WorkerId, why: str, is_refused: bool) -> None:
    """Probe a worker at which a request failed."""
    gateway.roster.suspect(worker, why, is_refused=is_refused)


def rejected(gateway: "Gateway", worker: WorkerId, busy_s: float) -> None:
    """Count a request that a saturated worker rejected, and send that worker none for `busy_s`."""
    gateway.metrics.worker(worker).num_rejected += 1
    gateway.lifecycle.busy(worker, busy_s)
