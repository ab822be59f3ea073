"""The gRPC ports of a gateway: endpoint picker and decisions, health, external scaler."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from gateway.app.component import Component
from gateway.config import Config
from gateway.core.errors import GatewayError
from gateway.core.pool_objects import PoolObjects
from gateway.decide import metrics as decide
from gateway.decide.metrics import DecideCollector
from gateway.decide.report_relay import ReportRelay
from gateway.epp import metrics as epp
from gateway.epp.metrics import EppCollector
from gateway.http.url import netloc_of
from gateway.proxy.api import Api, ready
from gateway.proxy.dispatch import Dispatch
from gateway.runtime.tasks import Tasks
from gateway.runtime.tls import Tls, grpc_tls
from gateway.scaling.planner import Planner

if TYPE_CHECKING:
    from gateway.decide.decision import DecideDoor
    from gateway.epp.door import Door
    from gateway.server.http2.server import GrpcServer
    from gateway.server.http2.service import Services

log = logging.getLogger("kvgate")

NOTICE_S = 4.0
"""Time for clients to notice that a gateway stops: Envoy needs 2 s with the health checks of deploy/envoy."""
LOOK_EVERY_S = 0.05
HEADROOM_BYTES = 6 << 20
"""Headers beside a body: Envoy sends a buffered one in one message."""


def certificate_of(config: Config) -> Tls | None:
    """Return the certificate of the gRPC ports; None without any. Raises ConfigError."""
    if not (config.epp.port or config.epp.health_port or config.scaling.port):
        return None
    return grpc_tls(config.epp.cert_file, config.epp.key_file)


class GrpcPortsPart(Component):
    """The ports and their services; gRPC and its messages are loaded only if the configuration has one."""

    metric_sections = (("Endpoint picker", epp.METRICS), ("Decision service", decide.METRICS))

    def __init__(
        self,
        config: Config,
        api: Api,
        dispatch: Dispatch,
        planner: Planner,
        objects: PoolObjects,
        reports: ReportRelay | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.decide_counts: Counter[str] = Counter()
        self._config = config
        self._api = api
        self._dispatch = dispatch
        self._planner = planner
        self._objects = objects
        self._reports = reports
        self._door: Door | None = None
        self._decide_door: DecideDoor | None = None
        self._servers: list[GrpcServer] = []
        self.tls = certificate_of(config)

    def __repr__(self) -> str:
        return f"GrpcPortsPart({self._servers})"

    @property
    def num_held(self) -> int:
        """Bookings that wait for the predicted end of an answer."""
        return len(self._door.held) if self._door is not None else 0

    @property
    def num_open_decisions(self) -> int:
        return self._decide_door.num_open if self._decide_door is not None else 0

    async def start(self, tasks: Tasks) -> None:
        """Open the configured ports. Raises ConfigError for a port that is not free."""
        config = self._config
        if self.tls is None:
            return
        from gateway.epp import health
        from gateway.scaling.keda import services_of
        from gateway.server.http2.limits import Http2Limits
        from gateway.server.http2.server import GrpcServer

        check = {health.CHECK: health.service_of(self._is_ready)}
        limits = Http2Limits(
            max_message_bytes=config.server.max_body_bytes + HEADROOM_BYTES,
            message_timeout_s=config.server.body_timeout_s,
            min_message_rate=config.server.min_body_rate,
        )
        ports = {
            "epp_port": (config.epp.port, {**check, **self._picking()} if config.epp.port else check),
            "epp_health_port": (config.epp.health_port, check),
            "scaling_port": (config.scaling.port, {**check, **services_of(self._planner)}),
        }
        for role, (port, services) in ports.items():
            if port:
                server = GrpcServer(services, self.tls, limits, self._dispatch.context.bodies)
                server.start(config.server.host, port, role)
                self._servers.append(server)
                log.info("%s: gRPC on %s, plain and TLS", role, netloc_of(config.server.host, port))

    def _picking(self) -> "Services":
        """The picker and the decision service."""
        from gateway.decide.services import services_of
        from gateway.epp import health
        from gateway.epp.door import Door
        from gateway.epp.picker import service_of

        config = self._config
        self._door = Door(
            self._api,
            self._dispatch,
            config.server.max_body_bytes,
            counts=self.counts,
            options=config.epp,
            objects=self._objects,
        )
        self._decide_door = door = self._make_decide_door()
        return {**services_of(door), health.EXT_PROC: service_of(self._door)}

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        """Another process serves the ports: finish open streams, for so long or until `stop`. False if some
        are left."""
        return all(await asyncio.gather(*(server.leave(seconds, stop) for server in self._servers)))

    async def drain(self, seconds: float) -> None:
        """Go on serving while health checks see that readiness is off, so that clients turn elsewhere; then
        end with the open streams, within so many seconds in all."""
        loop = asyncio.get_running_loop()
        deadline, noticed = loop.time() + seconds, loop.time() + min(NOTICE_S, seconds / 2)
        while any(each.num_connections for each in self._servers) and loop.time() < noticed:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        left_s = max(0.0, deadline - loop.time())
        await asyncio.gather(*(server.stop(left_s) for server in self._servers))

    async def stop(self) -> None:
        if self._door is not None:
            self._door.held.stop()
        if self._decide_door is not None:
            self._decide_door.stop()

    def collectors(self) -> Sequence[Collector]:
        return [
            EppCollector(self.counts, lambda: self.num_held),
            DecideCollector(self.decide_counts, lambda: self.num_open_decisions),
        ]

    def _make_decide_door(self) -> "DecideDoor":
        from gateway.decide.decision import DecideDoor

        config = self._config
        door = DecideDoor(
            self._api,
            self._dispatch,
            config.server.max_body_bytes,
            config.epp.decision_expires_s,
            trusts_headers=config.epp.trust_headers,
            counts=self.decide_counts,
            relay=self._reports,
        )
        if self._reports is not None:
            self._reports.attach(door.relayed)
        return door

    def _is_ready(self) -> bool:
        gate = self._dispatch.context.gate
        if gate is not None and gate.is_holding:  # requests that start a fleet of zero must come through
            return not self._api.is_stopping
        try:
            ready(self._dispatch.context.router.fleet, None, is_stopping=self._api.is_stopping)
        except GatewayError:
            return False
        return True
