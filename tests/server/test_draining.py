import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.server.draining import all_left, closing


class Connection:
    def __init__(self, connections: set["Connection"], leaves_after: int) -> None:
        self._connections = connections
        self._left = leaves_after
        connections.add(self)

    def leave(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._connections.discard(self)


async def test_draining_ends_when_all_connections_have_left() -> None:
    connections: set[Connection] = set()
    for turns in (1, 2):
        Connection(connections, turns)
    assert await all_left(connections, 60, asyncio.Event())
    assert await all_left(connections, 0, asyncio.Event())


async def test_draining_ends_at_its_timeout_or_when_stopped() -> None:
    connections: set[Connection] = set()
    Connection(connections, 1000)
    assert not await all_left(connections, 0, asyncio.Event())
    stop = asyncio.Event()
    stop.set()
    assert not await all_left(connections, 60, stop)


async def test_draining_waits_for_connections_that_are_opening() -> None:
    connections: set[Connection] = set()
    opening = [None]

    class Late(Connection):
        def leave(self) -> None:
            opening.clear()
            super().leave()

    Late(connections, 2)
    assert await all_left(connections, 60, asyncio.Event(), opening)
    opening = [None]
    assert not await all_left(connections, 0, asyncio.Event(), opening)


@pytest.mark.process
async def test_a_leaving_connection_marks_its_next_answer_as_the_last() -> None:
    is_leaving = False

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application(middlewares=[closing(lambda: is_leaving)])
    app.router.add_get("/", hello)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/")).headers.get("connection") != "close"
        is_leaving = True
        assert (await client.get("/")).headers["connection"] == "close"
