"""gRPC servers: one port each, for plain connections and TLS alike.

listening socket ─► Acceptor ─► first byte: TLS or plain ─► handshake ─► GrpcProtocol
"""

import asyncio
import logging
import socket

from gateway.runtime import process_limits
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.runtime.tls import Tls, listening_context
from gateway.server.acceptor import Acceptor
from gateway.server.body_budget import BodyBudget
from gateway.server.client_limit import ClientLimit
from gateway.server.draining import all_left
from gateway.server.http2.first_bytes import is_tls, mistaken_for
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.protocol import GrpcProtocol
from gateway.server.http2.service import Services
from gateway.server.proxy_protocol import peer_of
from gateway.server.sockets import adopt, bind_tcp

log = logging.getLogger("kvgate.grpc")

HANDSHAKE_S = 10.0
LOOK_EVERY_S = 0.02


class GrpcServer:
    """Serves `services` on one port; `start` binds it, `leave` lets open streams end, `stop` ends all."""

    def __init__(
        self,
        services: Services,
        tls: Tls | None = None,
        limits: Http2Limits | None = None,
        bodies: BodyBudget | None = None,
    ) -> None:
        """Without `tls` the port is plain. Incomplete messages of all connections count in `bodies`."""
        self._services = services
        self._tls = tls
        self._limits = limits or Http2Limits()
        self._bodies = bodies or BodyBudget()
        self._connections: set[GrpcProtocol] = set()
        self._opening = Tasks()
        self._log = RateLimitedLog(log)
        self._acceptor: Acceptor | None = None
        self._role = ""

    def __repr__(self) -> str:
        return f"GrpcServer({sorted(self._services)}, {len(self._connections)} connections)"

    @property
    def num_connections(self) -> int:
        return len(self._connections) + len(self._opening)

    @property
    def num_streams(self) -> int:
        return sum(connection.num_streams for connection in self._connections)

    def start(self, host: str, port: int, role: str) -> int:
        """Begin to accept; returns the port. Raises ConfigError where it is not free; `role` names the
        option."""
        self._role = role
        listening = bind_tcp(host, port, role, is_shared=True)
        clock = asyncio.get_running_loop().time
        room = ClientLimit(process_limits.descriptors(), lambda: self.num_connections, clock)
        self._acceptor = Acceptor(listening, lambda: self._take, room)
        bound: int = listening.getsockname()[1]
        self._acceptor.start()
        return bound

    def drain(self) -> None:
        """Accept nothing more, and announce the end to each client; open streams go on."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.leave()

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        """Drain for so long, or until `stop`. False if streams are left, for `stop`."""
        self.drain()
        return await all_left(self._connections, seconds, stop, self._opening)

    async def stop(self, grace_s: float) -> None:
        """Drain, and after `grace_s` seconds end what is left."""
        self.drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self.num_connections and loop.time() < deadline:
            for connection in list(self._connections):
                connection.leave()  # repeated, since a handshake may end meanwhile
            await asyncio.sleep(LOOK_EVERY_S)
        await self._opening.stop()
        num_cut = self.num_streams
        for connection in list(self._connections):
            connection.abort()
        if num_cut:
            log.warning("%s: %d streams ended unfinished after %g s", self._role, num_cut, grace_s)

    def _take(self, file: int) -> None:
        self._opening.start("take a gRPC client", self._serve(socket.socket(fileno=file)))

    async def _serve(self, connection: socket.socket) -> None:
        peer, context = "", None
        try:
            peer = peer_of(connection)
            if await is_tls(connection, HANDSHAKE_S) and self._tls is not None:
                context = await asyncio.to_thread(listening_context, self._tls)
            await adopt(connection, lambda: self._protocol(peer), context, HANDSHAKE_S)
        except OSError as exc:  # including TLS errors and timeouts
            connection.close()
            if context is not None:
                text = "%s: TLS handshake with %s failed: %s"
                self._log.warning(text, self._role, peer, exc)
            else:
                log.debug("%s: connection lost before its first byte: %s", self._role, exc)

    def _protocol(self, peer: str) -> GrpcProtocol:
        return GrpcProtocol(self._services, self._limits, self._bodies, self._connections, self._fault, peer)

    def _fault(self, peer: str, first: bytes, why: str) -> None:
        """A connection was ended for a fault of its client."""
        if first and (words := mistaken_for(first)):
            self._log.warning("%s: %s; connection of %s closed", self._role, words, peer)
        else:
            self._log.warning("%s: connection of %s closed: %s", self._role, peer, why)
