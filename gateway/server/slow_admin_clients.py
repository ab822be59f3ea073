"""Deadlines for connections to the admin API; its server (aiohttp) has them for idle ones only.

    connected ──► head of a request ──► its body ──► answer written
        └─ head_s ─┘        └──── body_s ────┘   └─ body_s ─┘

Slower connections are aborted: silent, dripping or non-reading clients would hold a descriptor each for ever.
The time to make an answer (loading an adapter) does not count.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

LOOK_INTERVAL_S = 0.5


@dataclass(slots=True)
class _ConnectionState:
    """State of a connection since `since_s`: without a request, with a body under way (`request`), or
    answered."""

    since_s: float
    request: web.BaseRequest | None = None
    has_asked: bool = False
    is_answered: bool = False


class SlowAdmins:
    """Aborts slow admin clients: `middleware` is for the application, `run` for a task, with the server of
    the connections."""

    def __init__(self, head_s: float, body_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._head_s, self._body_s = head_s, body_s
        self._clock = clock
        self._seen: dict[Any, _ConnectionState] = {}
        self.num_cut = 0

    def __repr__(self) -> str:
        return f"SlowAdmins({len(self._seen)} connections, {self.num_cut} cut)"

    @property
    def middleware(self) -> Any:
        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            seen = self._seen[request.protocol] = _ConnectionState(self._clock(), request, has_asked=True)
            try:
                return await handler(request)
            finally:
                seen.request, seen.is_answered, seen.since_s = None, True, self._clock()

        return noted

    async def run(self, server: Any) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look(server.connections)

    def look(self, connections: Iterable[Any]) -> None:
        """Abort connections with their deadline over."""
        now, before = self._clock(), self._seen
        self._seen = {each: before.get(each) or _ConnectionState(now) for each in connections}
        for connection, seen in self._seen.items():
            transport = connection.transport
            if transport is not None and self._is_late(seen, transport, now):
                self.num_cut += 1
                transport.abort()

    def _is_late(self, seen: _ConnectionState, transport: asyncio.Transport, now: float) -> bool:
        waited_s = now - seen.since_s
        if not seen.has_asked:
            return waited_s > self._head_s
        if seen.request is not None:
            return waited_s > self._body_s and not seen.request.content.is_eof()
        return waited_s > self._body_s and transport.get_write_buffer_size() > 0
