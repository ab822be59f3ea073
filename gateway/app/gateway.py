"""A gateway of one process: its components, started and stopped, and what programs ask of it."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from gateway.app.component import ConfigChange, Swap
from gateway.app.gateway_parts import Parts, Surroundings
from gateway.app.reloads import Reloads
from gateway.config import Config
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.worker import Role
from gateway.discovery.roster import Roster
from gateway.index.base import Index
from gateway.observability.metrics import Metrics
from gateway.routing.router import Router


class Gateway:
    """Gateway of one process; `start` opens it, `stop` closes it. `parts` are its components."""

    def __init__(
        self,
        config: Config,
        surroundings: Surroundings | None = None,
        compose: Callable[[Config, Surroundings], Parts] = Parts,
    ) -> None:
        """Make all parts, within the running event loop. Raises ConfigError."""
        self.parts = compose(config, surroundings or Surroundings())

    @property
    def config(self) -> Config:
        """Configuration in use."""
        return self.parts.reloads.config

    @property
    def fleet(self) -> Fleet:
        return self.parts.fleet.fleet

    @property
    def metrics(self) -> Metrics:
        return self.parts.fleet.metrics

    @property
    def index(self) -> Index:
        return self.parts.index.index

    @property
    def router(self) -> Router:
        return self.parts.routing.router

    @property
    def roster(self) -> Roster:
        return self.parts.roster.roster

    @property
    def port(self) -> int:
        """Port that clients reach, also where 0 was configured."""
        return self.parts.sockets.port

    @property
    def admin_port(self) -> int:
        return self.parts.sockets.admin_port

    async def start(self, *, serve: bool = True) -> None:
        """Begin to wait for the workers; with `serve`, listen for clients and admins too. Raises ConfigError
        or StartFailed, with everything closed again."""
        self.parts.sockets.is_wanted = serve
        await self.parts.start()

    def add_worker(self, url: str, role: Role | None = None) -> bool:
        """Begin to wait for a worker, or for those of a name; False if that is so already."""
        return self.parts.sources.add(url, role)

    def drop_worker(self, url: str) -> bool:
        """Forget a worker, or a name and its workers: they get nothing new, and end what they have."""
        return self.parts.sources.drop(url)

    async def listen(self, traffic: Sequence[socket.socket], admin: socket.socket) -> None:
        """Begin to accept from listening sockets, which are closed by `leave` and `stop`."""
        await self.parts.front_door.listen(traffic, admin)

    async def warm_up(self, seconds: float) -> None:
        """Wait until every worker has been probed once, for at most `seconds` or the timeout of one probe, so
        that the first requests find workers; within `seconds`, for the replays of their events too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, self.config.lifecycle.probe_timeout_s)):
                await self.parts.have_looked()
                if seconds:
                    while any(member.stream is StreamState.CATCHING_UP for member in self.fleet):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        """Finish open requests after another process has taken over, for `seconds` or until `stop`. Returns
        False if some are left."""
        parts = self.parts
        leaving = (parts.front_door.leave(seconds, stop), parts.grpc_ports.leave(seconds, stop))
        return all(await asyncio.gather(*leaving))

    async def stop(self, drain_s: float | None = None) -> None:
        """Shut down: report not ready, stop accepting, let requests finish until the deadline, abort the
        rest. Closes what was opened also where it was never started."""
        await self.parts.stop(self.config.server.drain_timeout_s if drain_s is None else drain_s)

    async def prepare(self, change: ConfigChange) -> Swap:
        """Validate a change of the configuration and return the swap that applies it. Raises ConfigError,
        with nothing changed."""
        return await self.parts.prepare(change)

    @property
    def reloads(self) -> Reloads | None:
        """Reloads of the configuration; None where it was not read from anywhere."""
        return self.parts.reloads.reloads

    @reloads.setter
    def reloads(self, reloads: Reloads | None) -> None:
        self.parts.reloads.reloads = reloads

    async def reload(self) -> dict[str, Any]:
        """Apply a new configuration. Raises ConfigError, with nothing changed."""
        return await self.parts.reloads.reload()
