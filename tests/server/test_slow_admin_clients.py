"""Connections to the admin API that are cut, and their timeouts."""

import asyncio
from typing import Any, cast

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol

from gateway.server.slow_admin_clients import SlowAdmins

HEAD_S, BODY_S = 30.0, 60.0


class Transport:
    def __init__(self) -> None:
        self.num_unwritten = 0
        self.is_cut = False

    def get_write_buffer_size(self) -> int:
        return self.num_unwritten

    def abort(self) -> None:
        self.is_cut = True


class Connection:
    def __init__(self) -> None:
        self.transport: Transport | None = Transport()

    @property
    def is_cut(self) -> bool:
        return self.transport is not None and self.transport.is_cut


class Request:
    def __init__(self, connection: Connection, *, has_all: bool) -> None:
        self.protocol = connection
        self.content = StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 16)
        if has_all:
            self.content.feed_eof()


class SlowAdminWorld:
    def __init__(self) -> None:
        self.now = 0.0
        self.slow = SlowAdmins(HEAD_S, BODY_S, lambda: self.now)
        self.connections = [Connection()]

    @property
    def connection(self) -> Connection:
        return self.connections[0]

    def look(self, after_s: float) -> bool:
        """True if the first connection was cut by then."""
        self.now += after_s
        self.slow.look(self.connections)
        return self.connection.is_cut

    async def ask(self, *, has_all: bool = True, lasts_s: float = 0.0) -> None:
        async def handle(request: web.Request) -> web.Response:
            assert not self.look(lasts_s)
            return web.Response()

        request = cast(Any, Request(self.connection, has_all=has_all))
        await self.slow.middleware(request, handle)


async def test_a_connection_without_a_request_is_cut() -> None:
    world = SlowAdminWorld()
    assert not world.look(0) and not world.look(HEAD_S)
    assert world.look(0.1)
    assert repr(world.slow) == "SlowAdmins(1 connections, 1 cut)"


async def test_an_idle_connection_after_a_request_is_left_to_the_server() -> None:
    world = SlowAdminWorld()
    await world.ask()
    assert not world.look(1000)


async def test_an_answer_may_take_as_long_as_its_handler() -> None:
    world = SlowAdminWorld()
    await world.ask(lasts_s=1000)
    assert not world.look(0)


async def test_a_stalled_body_is_cut() -> None:
    world = SlowAdminWorld()
    with pytest.raises(AssertionError):
        await world.ask(has_all=False, lasts_s=BODY_S + 0.1)
    assert world.connection.is_cut


async def test_a_body_in_progress_is_not_cut() -> None:
    world = SlowAdminWorld()
    await world.ask(has_all=False, lasts_s=BODY_S)


async def test_a_client_that_does_not_read_its_answer_is_cut() -> None:
    world = SlowAdminWorld()
    await world.ask()
    assert world.connection.transport
    world.connection.transport.num_unwritten = 1
    assert not world.look(BODY_S)
    assert world.look(0.1)


async def test_closed_connections_are_forgotten() -> None:
    world = SlowAdminWorld()
    await world.ask()
    world.connection.transport = None
    assert not world.look(1000)
    world.connections = []
    world.slow.look([])
    assert repr(world.slow) == "SlowAdmins(0 connections, 0 cut)"
