"""A process that leaves: another one accepts from now on, what is open here is finished.

Idle connections are not closed at once, since their client may be sending just now and would be reset:
each ends with its next answer, or when it has been idle for its time.
"""

import asyncio
from collections.abc import Callable, Collection, Sized
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

LOOK_EVERY_S = 0.05


class Leaving(Protocol):
    def leave(self) -> None: ...


async def all_left(
    connections: Collection[Leaving], seconds: float, stop: asyncio.Event, opening: Sized = ()
) -> bool:
    """Until no connection is open or opening, False if the time is over before or `stop` is set. Those that
    were accepted at the last moment are told too, so all are told again and again."""
    deadline = asyncio.get_running_loop().time() + seconds
    while connections or len(opening):
        if asyncio.get_running_loop().time() >= deadline or stop.is_set():
            return False
        for connection in list(connections):
            connection.leave()
        await asyncio.sleep(LOOK_EVERY_S)
    return True


def closing(is_leaving: Callable[[], bool]) -> Middleware:
    """For the admin API: the next answer on a kept connection is its last."""

    @web.middleware
    async def close(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if is_leaving():
            response.force_close()
        return response

    return close
