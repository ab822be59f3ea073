"""Clients and admins on real sockets, and the end of their connections."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from gateway.config import config_of
from gateway.http.messages import HttpRequest
from gateway.runtime.tls import listening_tls
from gateway.server.body_budget import BodyBudget
from gateway.server.connection import ClientConnection
from gateway.server.listener import Listener
from gateway.server.responder import Exchange, Responder
from gateway.server.sockets import bind_tcp
from tests.support.certificates import Authority
from tests.support.patience import patience

pytestmark = pytest.mark.process

GET = b"GET / HTTP/1.1\r\nHost: g\r\n\r\n"
DEADLINE_S = patience(20.0)


class Held:
    """Exchange that ends when the test ends it."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder

    def client_gone(self) -> None: ...
    def client_full(self) -> None: ...
    def client_free(self) -> None: ...


class ListenerWorld:
    def __init__(self, front: Listener, connections: set[ClientConnection], held: list[Held]) -> None:
        self.front, self.connections, self.held = front, connections, held
        self.traffic, self.admin = bind_tcp("127.0.0.1", 0, "port"), bind_tcp("127.0.0.1", 0, "admin_port")

    @classmethod
    async def open(cls, authority: Authority | None = None) -> "ListenerWorld":
        connections: set[ClientConnection] = set()
        held: list[Held] = []

        def handle(http: HttpRequest, responder: Responder) -> Exchange | None:
            held.append(Held(responder))
            return held[-1]

        tls = listening_tls((pair := authority.issue()).cert, pair.key) if authority else None
        app = web.Application()
        app.router.add_get("/", _hello)
        front = Listener(config_of(), connections, handle, lambda status: None, app, tls, BodyBudget())
        await front.open()
        return cls(front, connections, held)

    async def listen(self) -> None:
        await self.front.listen([self.traffic], self.admin)

    async def client(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self.traffic.getsockname()[1]
        return await asyncio.open_connection("127.0.0.1", port, ssl=tls)

    def cut(self) -> None:
        for held in self.held:
            held.responder.abort()

    async def until_held(self, num: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.held) < num:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def close(self) -> None:
        await self.front.drain(0, self.cut)
        await self.front.close()
        self.traffic.close()
        self.admin.close()


async def _hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest_asyncio.fixture
async def plain() -> AsyncIterator[ListenerWorld]:
    world = await ListenerWorld.open()
    yield world
    await world.close()


@pytest_asyncio.fixture
async def secure(authority: Authority) -> AsyncIterator[ListenerWorld]:
    world = await ListenerWorld.open(authority)
    yield world
    await world.close()


async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """All bytes until the gateway closed."""
    async with asyncio.timeout(DEADLINE_S):
        received = await reader.read()
    writer.close()
    return received


async def test_a_drain_lets_requests_finish_and_closes_idle_connections(plain: ListenerWorld) -> None:
    await plain.listen()
    busy, idle = await plain.client(), await plain.client()
    busy[1].write(GET)
    await plain.until_held(1)
    draining = asyncio.get_running_loop().create_task(plain.front.drain(DEADLINE_S, plain.cut))
    assert await ends(*idle) == b""
    plain.held[0].responder.send(200, [], b"done")
    assert (await ends(*busy)).endswith(b"done")
    await draining
    assert repr(plain.front) == "Listener(open=0, opening=0)"


async def test_a_drain_that_leaves_no_connection_cuts_nothing(plain: ListenerWorld) -> None:
    cuts: list[int] = []
    await plain.front.drain(DEADLINE_S, lambda: cuts.append(1))
    assert not cuts


async def test_connections_left_after_a_drain_are_cut(plain: ListenerWorld) -> None:
    await plain.listen()
    client = await plain.client()
    client[1].write(GET)
    await plain.until_held(1)
    cuts: list[int] = []
    await plain.front.drain(0, lambda: cuts.append(len(plain.connections)))
    assert cuts == [1]
    with contextlib.suppress(ConnectionError):
        assert await ends(*client) == b""
    assert not plain.connections


async def test_leaving_waits_for_a_handshake_and_its_request(
    authority: Authority, secure: ListenerWorld
) -> None:
    await secure.listen()
    sock = socket.create_connection(secure.traffic.getsockname())
    sock.setblocking(False)
    async with asyncio.timeout(DEADLINE_S):
        while "opening=1" not in repr(secure.front):  # noqa: ASYNC110
            await asyncio.sleep(0)
    leaving = asyncio.get_running_loop().create_task(secure.front.leave(DEADLINE_S, asyncio.Event()))
    await asyncio.sleep(0)
    client = await asyncio.open_connection(sock=sock, ssl=authority.context(), server_hostname="localhost")
    client[1].write(GET)
    await secure.until_held(1)
    async with asyncio.timeout(DEADLINE_S):
        while not next(iter(secure.connections)).is_draining:  # noqa: ASYNC110
            await asyncio.sleep(0)
    secure.held[0].responder.send(200, [], b"done")
    received = await ends(*client)
    assert b"connection: close" in received and received.endswith(b"done")
    assert await leaving


async def test_a_connection_accepted_by_another_process_is_served_over_tls(
    authority: Authority, secure: ListenerWorld
) -> None:
    ours, theirs = socket.create_server(("127.0.0.1", 0)), socket.socket()
    theirs.connect(ours.getsockname())
    accepted, _ = ours.accept()
    ours.close()
    theirs.setblocking(False)
    secure.front.take_client(accepted.detach())
    client = await asyncio.open_connection(sock=theirs, ssl=authority.context(), server_hostname="localhost")
    client[1].write(GET)
    await secure.until_held(1)
    client[1].close()


async def test_a_connection_of_a_unix_socket_is_served_without_tls(secure: ListenerWorld) -> None:
    ours, theirs = socket.socketpair()
    secure.front.take_client(ours.detach())
    client = await asyncio.open_connection(sock=theirs)
    client[1].write(GET)
    await secure.until_held(1)
    client[1].close()


async def test_a_failed_handshake_is_reported(secure: ListenerWorld) -> None:
    listening, lost = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    with socket.create_connection(listening.getsockname()) as client:
        accepted, _ = listening.accept()
        secure.front.take_client(accepted.detach(), lost.set)
        client.sendall(GET)
        async with asyncio.timeout(DEADLINE_S):
            await lost.wait()
    listening.close()
    assert secure.held == [] and not secure.connections


async def test_an_admin_connection_accepted_by_another_process_is_served(plain: ListenerWorld) -> None:
    ours, theirs = socket.socketpair()
    plain.front.take_admin(ours.detach())
    client = await asyncio.open_connection(sock=theirs)
    client[1].write(b"GET / HTTP/1.0\r\n\r\n")
    assert (await ends(*client)).endswith(b"hello")


async def test_an_admin_connection_that_comes_after_the_end_is_closed() -> None:
    """The supervisor may ask a process for its metrics while that ends."""
    world = await ListenerWorld.open()
    await world.close()
    ours, theirs = socket.socketpair()
    with ours:
        world.front.take_admin(theirs.detach())
        ours.settimeout(DEADLINE_S)
        assert ours.recv(1) == b""
