"""Draining of a process that is replaced: another one accepts from now on, open connections finish.

Idle connections are not closed at once, since their client may be sending just now and would be reset: each
ends with its next answer, or with its idle timeout.
"""

import asyncio
from collections.abc import Callable, Collection, Sized
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

LOOK_EVERY_S = 0.05


class Drainable(Protocol):
    def leave(self) -> None: ...


async def all_left(
    connections: Collection[Drainable], seconds: float, stop: asyncio.Event, opening: Sized = ()
) -> bool:
    """Wait until no connection is open or opening; False if the time is over or `stop` is set before. Asks
    repeatedly, to reach connections accepted at the last moment."""
    deadline = asyncio.get_running_loop().time() + seconds
    while connections or len(opening):
        if asyncio.get_running_loop().time() >= deadline or stop.is_set():
            return False
        for connection in list(connections):
            connection.leave()
        await asyncio.sleep(LOOK_EVERY_S)
    return True


def closing(is_leaving: Callable[[], bool]) -> Middleware:
    """Return a middleware for the admin API that makes the next answer on a kept connection its last."""

    @web.middleware
    async def close(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if is_leaving():
            response.force_close()
        return response

    return close
