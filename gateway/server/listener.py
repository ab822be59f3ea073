"""Entry of clients and admins: listening, accepting, handshakes, draining.

    traffic sockets ─► Acceptor, while there is room ─┬─► adopt, with handshake ─► ClientConnection
    a supervisor ──── accepted connections ───────────┘
    admin socket, or the supervisor ────────────────────────────────► aiohttp

A handshake under way is not a connection yet, and the loop's own servers would lose it when they are closed;
so each is a task here, and draining waits for it as for a connection.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, MutableSet, Sequence

from aiohttp import web

from gateway.config import Config
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.http.framing import HttpLimits
from gateway.runtime import process_limits
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.runtime.tls import Tls, is_plain_http, listening_context
from gateway.server.acceptor import Acceptor
from gateway.server.admin_runner import AdminRunner
from gateway.server.body_budget import BodyBudget
from gateway.server.client_limit import ClientLimit
from gateway.server.connection import ClientConnection, OnRefused
from gateway.server.draining import all_left, closing
from gateway.server.proxy_protocol import peer_of, source_of
from gateway.server.responder import Handle
from gateway.server.reverse_proxy import trusted_of
from gateway.server.sockets import adopt

log = logging.getLogger("kvgate")

LOOK_EVERY_S = 0.02
MAX_HANDSHAKE_S = 10.0
"""A client that shakes hands takes some round trips; the head of its request may come later."""


def limits_of(config: Config) -> HttpLimits:
    return HttpLimits(
        max_body_bytes=config.server.max_body_bytes,
        head_timeout_s=config.server.head_timeout_s,
        body_timeout_s=config.server.body_timeout_s,
        min_body_rate=config.server.min_body_rate,
        keep_alive_s=config.server.keep_alive_s,
    )


class Listener:
    """Front end of a gateway: call `open`, `listen` or `take_client`, then `leave` or `drain`, then `close`.
    `connections` has the clients."""

    def __init__(
        self,
        config: Config,
        connections: MutableSet[ClientConnection],
        handle: Handle,
        on_refused: OnRefused,
        admin: web.Application,
        tls: Tls | None,
        bodies: BodyBudget,
        cross_origins: CrossOriginPolicy | None = None,
    ) -> None:
        self._connections = connections
        self._handle, self._on_refused, self._bodies = handle, on_refused, bodies
        self._cross_origins = cross_origins
        self._log = RateLimitedLog(log)
        self._limits = limits_of(config)
        self._tls = listening_context(tls) if tls else None
        self._head_timeout_s = config.server.head_timeout_s
        self._proxied = trusted_of(config) if config.server.proxy_protocol else None
        self._handshake_timeout_s = min(config.server.head_timeout_s, MAX_HANDSHAKE_S)
        self._is_leaving = False
        self._opening = Tasks()
        self._acceptors: list[Acceptor] = []
        self._admin_site: web.SockSite | None = None
        admin.middlewares.append(closing(lambda: self._is_leaving))
        self._admin_runner = AdminRunner(admin, config.server.head_timeout_s, config.server.body_timeout_s)

    def __repr__(self) -> str:
        return f"Listener(open={len(self._connections)}, opening={len(self._opening)})"

    def take(self, config: Config) -> None:
        """Apply new limits to connections from now on."""
        self._limits = limits_of(config)
        self._handshake_timeout_s = min(config.server.head_timeout_s, MAX_HANDSHAKE_S)

    async def open(self) -> None:
        await self._admin_runner.setup()

    async def listen(self, traffic: Sequence[socket.socket], admin: socket.socket) -> None:
        """Start accepting from listening sockets, which are closed by `leave` and `close`."""
        room = ClientLimit(process_limits.descriptors(), self._num_clients, asyncio.get_running_loop().time)
        for listening in traffic:
            acceptor = Acceptor(listening, lambda: self.take_client, room)
            self._acceptors.append(acceptor)
            acceptor.start()
        self._admin_site = web.SockSite(self._admin_runner, admin)
        await self._admin_site.start()

    def take_client(self, file: int, on_lost: Callable[[], None] = lambda: None) -> None:
        """Serve an accepted client connection; `connections` has it until its end. `on_lost` is called if it
        fails before."""
        taking = self._take if self._proxied is None else self._take_proxied
        self._opening.start("take a client", taking(self._connection, self._tls, file, on_lost))

    def take_admin(self, file: int) -> None:
        """Serve an accepted admin connection. After `close` it is closed, and its client finds it so."""
        server = self._admin_runner.server
        if server is None:
            return os.close(file)
        self._opening.start("take an admin", self._take(server, None, file, lambda: None))

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        """Stop accepting and let open connections finish, for at most `seconds` or until `stop`. Returns
        False if some are left for `drain`."""
        self._is_leaving = True
        self.stop_listening()
        if self._admin_site:
            await self._admin_site.stop()
            self._admin_site = None
        return await all_left(self._connections, seconds, stop, self._opening)

    def stop_listening(self) -> None:
        """Stop accepting; waiting connections stay in the queue of the socket, if another process
        has it too."""
        for acceptor in self._acceptors:
            acceptor.close()

    async def drain(self, seconds: float, cut: Callable[[], None]) -> None:
        """Let requests finish until the deadline; where some are left, call `cut` and close their
        connections. Requests of other ports have their own drain."""
        self.stop_listening()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._connections or self._opening:
            # Repeated, since a handshake may end meanwhile.
            for connection in list(self._connections):
                connection.drain()
            if loop.time() >= deadline:
                cut()
                break
            await asyncio.sleep(LOOK_EVERY_S)
        await self._opening.stop()
        for connection in list(self._connections):
            connection.abort()

    async def close(self) -> None:
        self.stop_listening()
        await self._admin_runner.cleanup()

    def _num_clients(self) -> int:
        return len(self._connections) + len(self._opening)

    def _connection(self) -> ClientConnection:
        return ClientConnection(
            self._handle,
            self._limits,
            self._connections,
            self._on_refused,
            self._bodies,
            self._cross_origins,
        )

    async def _take_proxied(
        self,
        make_protocol: Callable[[], ClientConnection],
        tls: ssl.SSLContext | None,
        file: int,
        on_lost: Callable[[], None],
    ) -> None:
        """Serve a connection after reading its PROXY header, if its peer is trusted."""
        assert self._proxied is not None, "called by `take_client`"
        connection = socket.socket(fileno=file)
        try:
            source = await source_of(connection, self._proxied, self._head_timeout_s)
        except OSError as exc:
            log.info("connection closed before its first request: %s", exc)
            connection.close()
            return on_lost()

        def make() -> ClientConnection:
            client = make_protocol()
            client.source = source
            return client

        return await self._take(make, tls, connection.detach(), on_lost)

    async def _take(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        file: int,
        on_lost: Callable[[], None],
    ) -> None:
        accepted, peer = socket.socket(fileno=file), ""
        try:
            peer = peer_of(accepted)
            await adopt(accepted, make_protocol, tls, self._handshake_timeout_s)
        except OSError as exc:  # including TLS errors and timeouts
            if is_plain_http(exc):
                self._log.warning("plain HTTP on the TLS port from %s; connection closed", peer)
            else:
                log.debug("connection lost before its first request: %s", exc)
            on_lost()
        if self._is_leaving:
            for connection in self._connections:
                connection.leave()
