"""Listening sockets that a gateway binds itself; those of `kvgate serve` are given to `Gateway.listen`."""

from gateway.app.component import Component
from gateway.config import Config
from gateway.runtime.tasks import Tasks
from gateway.server.socket_set import Sockets


class ListeningSocketsPart(Component):
    """Sockets, bound before anything else starts; with `is_wanted` False there are none."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.is_wanted = False
        self.bound: Sockets | None = None

    async def start(self, tasks: Tasks) -> None:
        """Bind the sockets. Raises ConfigError for a port that is not free."""
        if self.is_wanted:
            self.bound = Sockets(self._config)

    async def drain(self, seconds: float) -> None:
        if self.bound:
            self.bound.remove_files()

    async def stop(self) -> None:
        if self.bound:
            self.bound.close()

    @property
    def port(self) -> int:
        """Port that clients reach, also where 0 was configured."""
        assert self.bound is not None
        port: int = self.bound.traffic[0].getsockname()[1]
        return port

    @property
    def admin_port(self) -> int:
        assert self.bound is not None
        port: int = self.bound.admin.getsockname()[1]
        return port
