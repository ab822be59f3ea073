"""The parts of a gateway, in the order in which they start: the one place that knows them all.

Config ─► fleet, index, policies, prompts ─► routing ─► requests ─► api ─► front_door
              ▲                                                        └─► admin
          roster (probes, event feeds)

A new one is a class of its own (`component.py`), and a method here that names what it needs. Its metrics, its
endpoints of the admin API, its reload and its stop follow from the class.
"""

import asyncio
import contextlib
from collections.abc import MutableSet
from dataclasses import dataclass, field

from aiohttp import web

from gateway.admin.app import application, metrics_handlers
from gateway.admin.auth import add_guard
from gateway.app.component_list import ComponentList, Part
from gateway.app.parts.adapters import AdaptersPart
from gateway.app.parts.api import ApiPart
from gateway.app.parts.cache_loss import CacheLossPart
from gateway.app.parts.certificates import CertificatesPart
from gateway.app.parts.client_surface import ClientSurfacePart
from gateway.app.parts.credentials import CredentialsPart
from gateway.app.parts.event_streams import EventStreamsPart
from gateway.app.parts.feeds import FeedsPart
from gateway.app.parts.fleet import FleetPart
from gateway.app.parts.front_door import FrontDoorPart
from gateway.app.parts.grpc_ports import GrpcPortsPart
from gateway.app.parts.index import IndexPart
from gateway.app.parts.lifecycle import LifecyclePart
from gateway.app.parts.listening_sockets import ListeningSocketsPart
from gateway.app.parts.open_requests import OpenRequests
from gateway.app.parts.policies import PoliciesPart
from gateway.app.parts.pool_objects import PoolObjectsPart
from gateway.app.parts.process_counts import ProcessCountsPart
from gateway.app.parts.prompts import PromptsPart
from gateway.app.parts.proofs import ProofsPart
from gateway.app.parts.recording import RecordingPart
from gateway.app.parts.reloads import ReloadsPart
from gateway.app.parts.requests import RequestsPart
from gateway.app.parts.roster import RosterPart
from gateway.app.parts.routing import RoutingPart
from gateway.app.parts.scaling import ScalingPart
from gateway.app.parts.shared_bookings import SharedBookingsPart
from gateway.app.parts.telemetry import TelemetryPart
from gateway.app.parts.traffic import TrafficPart
from gateway.app.parts.upstream import UpstreamPart
from gateway.app.parts.verification import VerificationPart
from gateway.app.parts.warming import WarmingPart
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.app.parts.worker_sources import WorkerSourcesPart
from gateway.bookings.shared_memory import ProcessView, view_alone
from gateway.config import Config
from gateway.core.ledger import Ledger
from gateway.decide.report_relay import ReportRelay
from gateway.index.assumed import AssumedIndex
from gateway.observability.collector import registry_of
from gateway.observability.log_sink import LogSink
from gateway.observability.observers import Observers
from gateway.server.connection import ClientConnection


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Surroundings of a gateway: memory shared with other processes, connections that are counted there, the
    policy file's text where it was read before, a sink of log lines, and the way of reports to the other
    processes."""

    place: ProcessView | None = None
    connections: MutableSet[ClientConnection] = field(default_factory=set)
    policy_source: str | None = None
    sink: LogSink | None = None
    reports: ReportRelay | None = None


class Parts(ComponentList):
    """Components of a gateway. Make it within the event loop; raises ConfigError."""

    def __init__(self, config: Config, surroundings: Surroundings) -> None:
        self.config = config
        self.surroundings = surroundings
        self.place = place = surroundings.place or view_alone(config)
        self.ledger = place.ledger if place else Ledger()
        self.assumed = place.assumed if place else AssumedIndex()
        self.observers = Observers()
        self.open_requests = OpenRequests()
        for component in self.all:
            for each in component.observers():
                self.observers.add(each.decided, each.answered, each.finished)

    @Part
    def sockets(self) -> ListeningSocketsPart:
        return ListeningSocketsPart(self.config)

    @Part
    def telemetry(self) -> TelemetryPart:
        return TelemetryPart(self.config, self.surroundings.sink)

    @Part
    def policies(self) -> PoliciesPart:
        return PoliciesPart(self.config, self.surroundings.policy_source, self.observers)

    @Part
    def fleet(self) -> FleetPart:
        return FleetPart(self.config)

    @Part
    def workers(self) -> WorkerAccessPart:
        return WorkerAccessPart(self.config)

    @Part
    def pool_objects(self) -> PoolObjectsPart:
        return PoolObjectsPart(self.config)

    @Part
    def upstream(self) -> UpstreamPart:
        return UpstreamPart(self.fleet.fleet, self.workers.tls, self.workers.access)

    @Part
    def prompts(self) -> PromptsPart:
        return PromptsPart(self.config, self.fleet.fleet, self.fleet.metrics, self.workers)

    @Part
    def traffic(self) -> TrafficPart:
        return TrafficPart(self.config, self.fleet.fleet, self.fleet.metrics)

    @Part
    def cache_loss(self) -> CacheLossPart:
        return CacheLossPart(self.config, self.prompts.source.decode, self.traffic.pooled)

    @Part
    def index(self) -> IndexPart:
        return IndexPart(self.config, self.fleet.fleet, self.assumed, self.cache_loss.losses)

    @Part
    def bookings(self) -> SharedBookingsPart:
        return SharedBookingsPart(self.config, self.place)

    @Part
    def proofs(self) -> ProofsPart:
        return ProofsPart(self.fleet.fleet, self.fleet.eligibility, self.workers)

    @Part
    def verification(self) -> VerificationPart:
        return VerificationPart(
            self.fleet.fleet,
            self.index.index,
            self.cache_loss.losses,
            self.proofs.salts.doubt,
            self.fleet.metrics,
            self.prompts.source,
        )

    @Part
    def streams(self) -> EventStreamsPart:
        return EventStreamsPart(self.config, self.index.index)

    @Part
    def routing(self) -> RoutingPart:
        return RoutingPart(
            self.config,
            self.fleet.fleet,
            self.index,
            self.ledger,
            self.prompts.source,
            self.policies.active_policy,
            self.observers,
        )

    @Part
    def recording(self) -> RecordingPart:
        return RecordingPart(self.config, self.fleet.metrics, self.observers)

    @Part
    def feeds(self) -> FeedsPart:
        return FeedsPart(self.config, self.workers, self.index, self.streams, self.verification.verifier)

    @Part
    def lifecycle(self) -> LifecyclePart:
        return LifecyclePart(
            self.config,
            self.fleet.fleet,
            self.ledger,
            self.fleet.metrics,
            self.observers,
            self.open_requests,
        )

    @Part
    def roster(self) -> RosterPart:
        return RosterPart(
            self.config,
            self.fleet,
            self.workers,
            self.index,
            self.feeds,
            self.prompts,
            self.proofs,
            self.lifecycle.lifecycle,
            self.upstream.pools,
            self.routing,
            self.verification.verifier,
            self.open_requests,
        )

    @Part
    def warming(self) -> WarmingPart:
        return WarmingPart(
            self.config,
            self.fleet.fleet,
            self.workers,
            self.index,
            self.routing.router,
            self.lifecycle.lifecycle,
            self.place,
        )

    @Part
    def counts(self) -> ProcessCountsPart:
        connections = self.surroundings.connections
        return ProcessCountsPart(self.fleet, self.ledger, self.index, self.roster.roster, connections)

    @Part
    def surface(self) -> ClientSurfacePart:
        return ClientSurfacePart(self.config)

    @Part
    def scaling(self) -> ScalingPart:
        return ScalingPart(
            self.config, self.fleet, self.routing.router, lambda: self.requests.gate, self.have_looked
        )

    @Part
    def requests(self) -> RequestsPart:
        return RequestsPart(
            self.config,
            self.routing,
            self.index,
            self.prompts,
            self.upstream,
            self.roster,
            self.lifecycle,
            self.streams,
            self.surface,
            self.bookings.bookings,
            self.verification.verifier,
            self.fleet.metrics,
            self.telemetry.telemetry,
            self.place.quota_usage if self.place else None,
            self.scaling.planner,
            self.open_requests,
            self.pool_objects.objects,
        )

    @Part
    def credentials(self) -> CredentialsPart:
        return CredentialsPart(self.config, self.routing.router)

    @Part
    def api(self) -> ApiPart:
        return ApiPart(
            self.config,
            self.requests.dispatch,
            self.fleet,
            self.telemetry.telemetry,
            self.credentials.credentials.authenticator,
            self.surface,
            self.policies.active_policy,
        )

    @Part
    def adapters(self) -> AdaptersPart:
        return AdaptersPart(self.config, self.fleet.fleet, self.roster.roster, self.workers)

    @Part
    def reloads(self) -> ReloadsPart:
        return ReloadsPart(self.config, self.prepare)

    @Part
    def grpc_ports(self) -> GrpcPortsPart:
        return GrpcPortsPart(
            self.config,
            self.api.api,
            self.requests.dispatch,
            self.scaling.planner,
            self.pool_objects.objects,
            self.surroundings.reports,
        )

    @Part
    def certificates(self) -> CertificatesPart:
        every = (self.front_door.tls, self.workers.tls, self.grpc_ports.tls)
        return CertificatesPart(every, self.fleet.metrics)

    @Part
    def front_door(self) -> FrontDoorPart:
        return FrontDoorPart(
            self.config,
            self.sockets,
            self.surroundings.connections,
            self.api.api,
            self.surface,
            self.admin,
            self.requests.dispatch.cut,
        )

    @Part
    def sources(self) -> WorkerSourcesPart:
        return WorkerSourcesPart(
            self.config,
            self.workers,
            self.roster,
            self.lifecycle,
            self.routing.router,
            self.fleet.metrics,
            self.verification,
            self.prompts,
        )

    async def have_looked(self) -> None:
        """Wait until all sources have been looked up, and each worker that is known then has been probed
        once or its probe has timed out."""
        await self.sources.sources.have_looked()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.lifecycle.probe_timeout_s):
                await self.roster.roster.first_look()

    def admin(self) -> web.Application:
        """Make the application of the admin port: the endpoints and metrics of all components."""
        handlers = {**self.admin_handlers(), **metrics_handlers(registry_of(self.collectors()))}
        app = application(handlers, self.admin_routes())
        if self.config.server.processes == 1:  # else the supervisor asks who it is
            add_guard(app, self.credentials.credentials, self.config)
        return app
