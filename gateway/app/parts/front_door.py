"""The ports of clients and admins."""

import asyncio
import socket
from collections.abc import Callable, MutableSet, Sequence

from aiohttp import web

from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.client_surface import ClientSurfacePart
from gateway.app.parts.listening_sockets import ListeningSocketsPart
from gateway.config import Config
from gateway.proxy.api import Api
from gateway.runtime.tasks import Tasks
from gateway.runtime.tls import listening_tls
from gateway.server.connection import ClientConnection
from gateway.server.listener import Listener
from gateway.server.reverse_proxy import reverse_proxied, trusted_of


class FrontDoorPart(Component):
    """Accepts connections. `listener` is there once it has started; `admin` makes the application of the
    admin port then, and `cut` ends the requests of connections that outlast the drain."""

    def __init__(
        self,
        config: Config,
        sockets: ListeningSocketsPart,
        connections: MutableSet[ClientConnection],
        api: Api,
        surface: ClientSurfacePart,
        admin: Callable[[], web.Application],
        cut: Callable[[], None],
    ) -> None:
        """Read the certificate. Raises ConfigError."""
        trusted_of(config)
        self.tls = listening_tls(config.tls.cert_file, config.tls.key_file)
        self._config, self._sockets, self._connections = config, sockets, connections
        self._api, self._surface, self._admin, self._cut = api, surface, admin, cut
        self._listener: Listener | None = None

    @property
    def listener(self) -> Listener:
        assert self._listener is not None, "the gateway has started"
        return self._listener

    async def start(self, tasks: Tasks) -> None:
        api, surface, config = self._api, self._surface, self._config
        self._listener = Listener(
            config,
            self._connections,
            reverse_proxied(config, api.handle, api.refuse),
            api.refused,
            self._admin(),
            self.tls,
            surface.bodies,
            surface.cross_origins,
        )
        await self._listener.open()
        if bound := self._sockets.bound:
            await self.listen(bound.traffic, bound.admin)

    async def listen(self, traffic: Sequence[socket.socket], admin: socket.socket) -> None:
        """Begin to accept from listening sockets, which are closed by `leave` and `stop`."""
        await self.listener.listen(traffic, admin)

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        return await self.listener.leave(seconds, stop)

    async def drain(self, seconds: float) -> None:
        if self._listener is not None:
            await self._listener.drain(seconds, self._cut)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.close()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return lambda: self.listener.take(change.config)
