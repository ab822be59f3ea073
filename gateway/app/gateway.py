"""A gateway of one process: all of its parts, put together, started and stopped.

Config ─► fleet, index, policy, prompts ─► Router ─► Proxy ─► Api ─► listening side
                ▲                                                └─► admin
          Roster (probes, event feeds)
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from engines import DEFAULT_CONNECTORS, ENGINES, KV_CONNECTORS
from gateway.admin.console.pooled_bound import pooled_bound_of
from gateway.admin.console.traffic_history import TrafficHistory, keep_sampled
from gateway.app import reconfigure
from gateway.app.admin_wiring import admin_of
from gateway.app.front_end import routes_of, surface_of
from gateway.app.grpc_ports import GrpcPorts
from gateway.app.index_backend import backend_of
from gateway.app.reloads import Reloads
from gateway.app.scaling import planner_of
from gateway.app.workers import (
    limits_of,
    name_prober_of,
    rejected,
    roster_of,
    salt_prober_of,
    sources_of,
    standings_of,
    suspect,
)
from gateway.bookings.shared_memory import ProcessView, view_alone
from gateway.bookings.tenant_usage import QuotaUsage
from gateway.bookings.time_slice import TimeSlice
from gateway.config import Config
from gateway.config.diff import ConfigDiff
from gateway.config.models import aliases_of
from gateway.config.secrets import worker_headers
from gateway.core.block_limits import FLEET, FleetBlocks
from gateway.core.eligibility import Eligibility
from gateway.core.engine import EventSource
from gateway.core.errors import ConfigError
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.ledger import Ledger
from gateway.core.worker import Role, Worker
from gateway.disaggregation.legs import LegServices
from gateway.disaggregation.stats import disaggregation_stats_of
from gateway.discovery.declared import declared_settings
from gateway.discovery.endpoint import EventSubscription
from gateway.discovery.engine_detection import Engines
from gateway.discovery.feeds import Feeds
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.lifecycle import keep_leaving
from gateway.discovery.probed import worker_urls
from gateway.http.address import names_several
from gateway.http.kubernetes_url import KUBERNETES
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.memory_sweep import keep_swept
from gateway.ingest.base import Feed
from gateway.ingest.blind_recovery import RecoveryObserver, keep_recovering
from gateway.ingest.ownership import OwnershipObserver, keep_proving
from gateway.models.catalog import warn_of_unserved
from gateway.models.from_config import catalog_of
from gateway.models.prompt_source import PromptSource
from gateway.models.worker_tokenizer import WorkerTokenizer
from gateway.observability.cache_loss.observer import CacheLoss, keep_explained
from gateway.observability.log_sink import LogSink
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.recorder import recorder_of
from gateway.observability.telemetry import Telemetry
from gateway.observability.verification.salt_alarm import SaltAlarm
from gateway.observability.verification.tapped_index import TappedIndex
from gateway.observability.verification.usage_sampling import UsageSampling
from gateway.observability.verification.verifier import Verifier
from gateway.parity.pairs import PairParity
from gateway.parity.prober import Prober
from gateway.proxy.api import Api
from gateway.proxy.context import AskUsage, Context
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.prompts import Prompts
from gateway.proxy.usage_check import UsageCheck
from gateway.redis.options import redis_of
from gateway.replication.agent_feeds import AgentFeeds
from gateway.replication.agent_targets import agents_of
from gateway.routing.active_policy import ActivePolicy
from gateway.routing.decision_log import DecisionLog
from gateway.routing.experiments import keep_compared
from gateway.routing.remote_lookup import RemoteLookup
from gateway.routing.router import Router
from gateway.routing.speed_model import SpeedModels
from gateway.runtime.loop_lag import LoopLag
from gateway.runtime.tasks import Tasks
from gateway.runtime.tls import follow, listening_tls, worker_tls
from gateway.scaling.planner import keep_advised
from gateway.server.connection import ClientConnection
from gateway.server.listener import Listener
from gateway.server.reverse_proxy import reverse_proxied, trusted_of
from gateway.server.socket_set import Sockets
from gateway.tenancy.admission.gate import gate_of
from gateway.tenancy.admission.request_identity import trusted_peers
from gateway.tenancy.auth.credentials import Credentials
from gateway.tokenization.sandbox.render_budget import hurry
from gateway.upstream.access import fleet_access, with_tables
from gateway.upstream.control_client import ControlSession
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.pools import Pools

if TYPE_CHECKING:
    from gateway.bookings.sync import SharedBookings
    from gateway.replication.session import ReplicationSession

log = logging.getLogger("kvgate")


USAGES = {engine.name: engine.usage for engine in ENGINES.values()}
"""How each engine reports usage, by name."""


def shown_to_workers(config: Config) -> tuple[str, str, str]:
    """Return the files by which kvgate verifies workers, and they kvgate."""
    return config.worker.ca_file, config.worker.cert_file, config.worker.cert_key_file


class Gateway:
    """Gateway of one process; `start` opens it, `stop` closes it."""

    reloads: Reloads | None = None
    """Reloads of the configuration; None in one of several processes, where the supervisor reloads."""

    def __init__(
        self,
        config: Config,
        *,
        place: ProcessView | None = None,
        connections: set[ClientConnection] | None = None,
        policy_source: str | None = None,
        sink: LogSink | None = None,
    ) -> None:
        """Wire all parts. `sink` takes log lines; the rest is for one of several. Raises ConfigError."""
        self.config, self._place = config, (place := place or view_alone(config))
        self.active_policy = ActivePolicy(config, policy_source)
        eligibility = Eligibility(ENGINES, needs_salt=bool(config.auth.tenant_salt_file))
        panic_percent = config.lifecycle.panic_threshold_percent
        self.fleet = Fleet(aliases_of(config.models), eligibility, panic_percent)
        self.metrics = Metrics(self.fleet.knows)
        self.assumed = place.assumed if place else AssumedIndex()
        self.prompts = PromptSource({}, self.metrics)
        self.catalog = catalog_of(config, self.prompts, self.fleet)
        self.losses, self.traffic = self._make_histories()
        self.backend = backend_of(config, self.losses)
        self.index: Index = self.backend.index
        self.owners, self.recovery_observer = self._make_stream_observers()
        self.verifier = self._make_verifier()
        self.disaggregation_stats = disaggregation_stats_of(config)
        self.observers = Observers()
        self.records = DecisionLog(self.observers)
        self.router = self._make_router(place.ledger if place else Ledger())
        self.lifecycle = standings_of(self)
        self.recorder = recorder_of(config, self.metrics, self.observers)
        self._tasks = Tasks()
        self.telemetry = Telemetry(config, sink, trusted_peers(config).trusts)
        self.connections: set[ClientConnection] = set() if connections is None else connections
        self._sockets: Sockets | None = None
        trusted_of(config)
        self._tls = listening_tls(config.tls.cert_file, config.tls.key_file)
        self.credentials = Credentials(config)
        self.surface = surface_of(config)
        self._read_workers()
        self._join(place)

    def _make_stream_observers(self) -> tuple[OwnershipObserver, RecoveryObserver]:
        keep_s = self.config.events.assumed_keep_s
        return OwnershipObserver(self.index), RecoveryObserver(self.index, keep_s=keep_s)

    def _make_histories(self) -> tuple[CacheLoss, TrafficHistory]:
        pooled, shows_text = pooled_bound_of(self.config, self.fleet), self.config.admin.show_prompt_text
        losses = CacheLoss(self.prompts.decode, shows_text=shows_text, seen=pooled.seen if pooled else None)
        return losses, TrafficHistory(self.metrics, pooled)

    def _make_verifier(self) -> Verifier:
        alarm = SaltAlarm(lambda url, rank: self.salt_prober.doubt(url, rank))
        return Verifier(self.fleet, self.index, time.monotonic, self.losses.set_drifting, alarm)

    def _join(self, place: ProcessView | None) -> None:
        """Join the state shared with other processes and gateways."""
        self.shared = self.backend.share(self.assumed)
        self.bookings = self._make_bookings(place)
        self._feeds = self._make_feeds()

    @property
    def sharing(self) -> "list[ReplicationSession | SharedBookings]":
        return [each for each in (self.shared, self.bookings) if each]

    def _read_workers(self) -> None:
        """Add the configured workers. Raises ConfigError."""
        config = with_tables(self.config)
        self.declared = declared_settings(config, KV_CONNECTORS, DEFAULT_CONNECTORS)
        self.worker_urls = worker_urls([*config.fleet.worker, *self.declared.roles])
        self.access = fleet_access(config)
        self.check_workers(self.worker_urls)
        self.worker_tls = worker_tls(*shown_to_workers(config))
        self.worker_headers = worker_headers(config.worker.key_file)
        self.engines = Engines(ENGINES, config.fleet.engine)
        self.agents = agents_of(config)
        self.blocks = FleetBlocks(FLEET * config.index.max_worker_blocks)

    def check_workers(self, urls: Sequence[str]) -> None:
        """Check that workers may have these addresses. Raises ConfigError."""
        for url in urls:
            if url.startswith(KUBERNETES):
                cluster_access(self.config.kubernetes)
            elif not names_several(url) and (refusal := self.access.refusal(url)):
                raise ConfigError(f"worker: {url}: {refusal}")

    async def start(self, *, serve: bool = True) -> None:
        """Begin to wait for the workers; with `serve`, listen for clients and admins too."""
        hurry(True)
        config, tls, access = self.config, self.worker_tls, self.access
        self.session = ControlSession(tls, timeout_s=config.lifecycle.probe_timeout_s, access=access)
        self.worker_tokenizer = WorkerTokenizer(timeout_s=config.tokenizer.timeout_s, tls=tls, access=access)
        self.dispatch = self._make_dispatch()
        self.planner = planner_of(self)
        self.lag = LoopLag(self.metrics.loop_lag_s.observe, self.metrics.loop_lag_cpu_s.observe)
        self.lag.start()
        post = partial(self.session.post, headers=self.worker_headers)
        prober = Prober(post, self.worker_tokenizer.learn)
        self.pair_parity = PairParity(self.fleet, self.disaggregation_stats.policy, prober, self._tasks.start)
        self.catalog.open(self._tasks.start, prober, self.worker_tokenizer)
        self.salt_prober = salt_prober_of(self, self._tasks.start)
        self.name_prober = name_prober_of(self)
        self.roster = roster_of(self)
        self.sources = sources_of(self, self._tasks.start)
        end_observers, authenticator = self.telemetry.end_observers, self.credentials.authenticator
        routes, origins = routes_of(config), self.surface.cross_origins
        self.api = Api(self.dispatch, self.fleet, self.metrics, routes, end_observers, authenticator, origins)
        self.grpc_ports = GrpcPorts(config, self.api, self.dispatch, self.planner)
        self.front = self._make_front()
        await self.front.open()
        for sharing in self.sharing:
            await sharing.start(self._tasks)
        if self.backend.run:
            self._tasks.start("index backend", self.backend.run())
        certificates = (self._tls, self.worker_tls, self.grpc_ports.tls)
        followed = [tls for tls in certificates if tls and tls.files]
        self._tasks.start("follow certificates", follow(followed, self.metrics.tls_loads))
        if serve:
            self._sockets = Sockets(config)
            await self.listen(self._sockets.traffic, self._sockets.admin)
        self.credentials.start(self._tasks, self.router)
        self._start_housekeeping()
        for url in self.worker_urls:
            self.add_worker(url, self.declared.roles.get(url))
        self._tasks.start("resolve names", self.sources.resolver.run())
        self.grpc_ports.start()

    def _start_housekeeping(self) -> None:
        self._tasks.start("sweep index", keep_swept(self.index))
        self._tasks.start("explain cache losses", keep_explained(self.losses))
        self._tasks.start("sample traffic", keep_sampled(self.traffic))
        self._tasks.start("heal streams", keep_recovering(self.recovery_observer))
        self._tasks.start("prove streams", keep_proving(self.owners))
        self._tasks.start("let go of workers", keep_leaving(self.lifecycle, self.roster))
        self._tasks.start("advise autoscalers", keep_advised(self.planner))
        self._tasks.start("compare policies", keep_compared(self.active_policy.experiments))
        unserved = warn_of_unserved(self.catalog, self.fleet, self.roster.has_all_joined)
        self._tasks.start("look for unserved tokenizers", unserved)
        self._tasks.start("ask workers for their day", self.catalog.watch_days())

    def add_worker(self, url: str, role: Role | None = None) -> bool:
        """Begin to wait for a worker, or for those of a name; False if that is so already."""
        adds = self.sources.add if names_several(url) else self.roster.add
        return adds(url, role)

    def drop_worker(self, url: str) -> bool:
        """Forget a worker, or a name and its workers: they get nothing new, and end what they have."""
        return self.roster.drop(url) or self.sources.drop(url)

    async def listen(self, traffic: Sequence[socket.socket], admin: socket.socket) -> None:
        """Begin to accept from listening sockets, which are closed by `leave` and `stop`."""
        await self.front.listen(traffic, admin)

    async def warm_up(self, seconds: float) -> None:
        """Wait until every worker has been probed once, for at most `seconds` or the timeout of one probe, so
        that the first requests find workers; within `seconds`, for the replays of their events too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, self.config.lifecycle.probe_timeout_s)):
                await self.sources.have_looked()
                await self.roster.first_look()
                if seconds:
                    while any(member.stream is StreamState.CATCHING_UP for member in self.fleet):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        """Finish open requests after another process has taken over, for `seconds` or until `stop`. Returns
        False if some are left."""
        return all(
            await asyncio.gather(self.front.leave(seconds, stop), self.grpc_ports.leave(seconds, stop))
        )

    async def stop(self, drain_s: float | None = None) -> None:
        """Shut down: report not ready, stop accepting, let requests finish until the deadline, abort the
        rest."""
        self.api.is_stopping = True
        if self._sockets:
            self._sockets.remove_files()
        drain_s = self.config.server.drain_timeout_s if drain_s is None else drain_s
        self.dispatch.stop(drain_s)
        await asyncio.gather(self.grpc_ports.stop(drain_s), self.front.drain(drain_s, self.dispatch.cut))
        await self.front.close()
        if self._sockets:
            self._sockets.close()  # where the start came no further than this
        hurry(False)
        await self.roster.stop()
        await self._tasks.stop()
        await self.sources.kubernetes.close()
        for sharing in self.sharing:
            await sharing.close()
        self.lag.stop()
        self.dispatch.context.prompts.long_prompts.close()
        self.pools.close()
        await self.worker_tokenizer.close()
        await self.session.close()
        self.close_context()

    @property
    def port(self) -> int:
        """Port that clients reach, also where 0 was configured."""
        assert self._sockets is not None
        port: int = self._sockets.traffic[0].getsockname()[1]
        return port

    @property
    def admin_port(self) -> int:
        assert self._sockets is not None
        port: int = self._sockets.admin.getsockname()[1]
        return port

    async def reload(self) -> dict[str, Any]:
        """Apply a new configuration. Raises ConfigError, with nothing changed."""
        if self.reloads is None:
            raise ConfigError("it was not read from anywhere: give it to a new gateway")

        async def apply(difference: ConfigDiff) -> None:
            new = difference.applied_to(self.config)
            (await reconfigure.prepare(self, new, difference.added, difference.dropped))()

        return await self.reloads.reload(apply)

    @property
    def collectors(self) -> Sequence[Collector]:
        """All collectors of metrics."""
        return [*self.telemetry.collectors, *([self.reloads] if self.reloads else [])]

    def _make_front(self) -> Listener:
        return Listener(
            self.config,
            self.connections,
            reverse_proxied(self.config, self.api.handle, self.api.refuse),
            self.api.refused,
            admin_of(self),
            self._tls,
            self.surface.bodies,
            self.surface.cross_origins,
        )

    def _make_router(self, ledger: Ledger) -> Router:
        router = Router(
            fleet=self.fleet,
            index=self.index,
            assumed=self.assumed,
            policy=self.active_policy.policy,
            tokenize=self.prompts.tokenize,
            ledger=ledger,
            keep_sent_s=self.config.events.assumed_keep_s,
            disaggregation=self.disaggregation_stats.policy,
            speed_models=SpeedModels.of(),
            observers=self.observers,
        )
        self.active_policy.drive(router)
        for observer in (self.losses, self.verifier, self.recovery_observer):
            self.observers.decided.append(observer.decided)
            self.observers.answered.append(observer.answered)
        self.observers.decided.append(self.owners.decided)
        for keeps in (self.losses, self.verifier, self.owners):
            self.observers.finished.append(keeps.finished)
        self.watch_experiments()
        return router

    def watch_experiments(self) -> None:
        """Observe decisions for A/B tests and shadows, while there are some."""
        experiments, observers = self.active_policy.experiments, self.observers
        if experiments.is_on and experiments.decided not in observers.decided:
            observers.decided.append(experiments.decided)
            observers.finished.append(experiments.finished)

    def asking(self) -> AskUsage:
        """Usage sampling: the streams for which the worker is to report usage."""
        mode = "all" if self.config.record.file else self.config.proxy.usage_injection
        return UsageSampling(mode, USAGES, self.verifier.in_doubt).ask

    @property
    def quota_usage(self) -> Callable[[str], QuotaUsage | None] | None:
        """Quota usage of tenants that this host's processes share; None for a single process."""
        return self._place.quota_usage if self._place else None

    def _make_bookings(self, place: ProcessView | None) -> "SharedBookings | None":
        if place is None or place.far_row is None or (options := redis_of(self.config)) is None:
            return None
        from gateway.bookings.sync import SharedBookings  # and its library

        return SharedBookings(options, place, is_atomic=self.config.redis.booking == "atomic")

    def _make_feeds(self) -> Feeds:
        return Feeds(
            limits_of=limits_of(self.config, self.blocks),
            engine_of=self.engines.named,
            index=TappedIndex(self.index, self.verifier.heard),
            assumed=self.assumed,
            headers=self.worker_headers,
            tasks=self._tasks,
            agents=AgentFeeds(self.agents, index=self.index, assumed=self.assumed, tasks=self._tasks),
            recovery_observer=self.recovery_observer,
            shared=self.shared,
            access=self.access,
            owners=self.owners,
        )

    def _make_dispatch(self) -> Dispatch:
        config, router = self.config, self.router
        self.pools = Pools(tls_context=lambda: self.worker_tls.context, access=self.access)
        outgoing, usages = Outgoing(self.fleet, self.pools), UsageCheck(self.metrics, USAGES)
        fetch = self.backend.fetch
        remote_lookup = RemoteLookup(router, fetch) if fetch else None
        under_lock = self.bookings.under_lock if self.bookings else None
        time_slice = TimeSlice(under_lock, router.tokenize) if under_lock else None
        context = Context(
            config=config,
            router=router,
            prompts=Prompts(self.prompts, router, self.worker_tokenizer, remote_lookup),
            metrics=self.metrics,
            records=self.records,
            tasks=self._tasks,
            pools=self.pools,
            outgoing=outgoing,
            usages=usages,
            suspect=partial(suspect, self),
            faults=self.lifecycle.faults,
            busy=partial(rejected, self),
            gate=gate_of(config, router, self.quota_usage, time_slice),
            ask_usage=self.asking(),
            time_slice=time_slice,
            to_report=self.recovery_observer.asking,
            response_ids=self.surface.response_ids,
            bodies=self.surface.bodies,
            end_observers=self.telemetry.end_observers,
        )
        self.legs = self._make_legs(context)
        return Dispatch(context, self.legs, self.telemetry.traces)

    def _make_legs(self, context: Context) -> LegServices:
        return LegServices(
            disaggregation_stats=self.disaggregation_stats,
            connectors=KV_CONNECTORS,
            router=context.router,
            metrics=context.metrics,
            pools=context.pools,
            outgoing=context.outgoing,
            start=context.tasks.start,
            log=context.log,
            failed=context.failed,
            busy=context.busy,
            refuse_usage=context.usages.refuse,
        )

    def open_feed(self, worker: Worker, source: EventSource) -> tuple[Feed, EventSubscription]:
        start_time_s, on_state = self.roster.start_time_s(worker.url), self.roster.stream_changed
        on_size = None if worker.url in self.declared.block_sizes else self.roster.block_size_shown
        return self._feeds.open(worker, source, self.session, on_state, start_time_s, on_size)

    async def reach_events(self, worker: Worker, source: EventSource) -> str | None:
        """Try to reach a worker's events and replay endpoint. Returns None, or the obstacle."""
        return await self._feeds.reach(worker, source, self.config.lifecycle.probe_timeout_s)

    def close_context(self) -> None:
        self.catalog.close()
        self._feeds.close()
        self.recorder.close()
        self.telemetry.close()
