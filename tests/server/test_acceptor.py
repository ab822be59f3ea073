"""Accepting over loopback, for a taker that may be busy."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from gateway.server.acceptor import Acceptor
from gateway.server.sockets import bind_tcp
from tests.support.patience import patience

pytestmark = pytest.mark.process


class Taker:
    def __init__(self) -> None:
        self.is_busy = False
        self.taken: list[socket.socket] = []
        self.news = asyncio.Event()

    def __call__(self) -> Callable[[int], None] | None:
        return None if self.is_busy else self._take

    def _take(self, file: int) -> None:
        self.taken.append(socket.socket(fileno=file))
        self.news.set()

    async def has(self, num: int) -> None:
        async with asyncio.timeout(patience(20)):
            while len(self.taken) < num:
                self.news.clear()
                await self.news.wait()

    def close(self) -> None:
        for sock in self.taken:
            sock.close()


async def test_clients_wait_while_the_process_is_busy() -> None:
    listening, taker = bind_tcp("127.0.0.1", 0, "port"), Taker()
    acceptor = Acceptor(listening, taker)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(3)]
    taker.is_busy = True
    acceptor.start()
    await asyncio.sleep(0)
    acceptor.start()  # harmless if repeated
    await asyncio.sleep(0)
    assert taker.taken == []
    taker.is_busy = False
    acceptor.start()
    await taker.has(3)
    assert {sock.getpeername() for sock in taker.taken} == {client.getsockname() for client in clients}
    acceptor.close()
    acceptor.start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(clients[0].getpeername())
    for sock in clients:
        sock.close()
    taker.close()


async def test_waiting_clients_are_left_to_other_processes_of_the_socket() -> None:
    listening, taker = bind_tcp("127.0.0.1", 0, "port"), Taker()
    heir = listening.dup()
    acceptor = Acceptor(listening, taker)
    client = socket.create_connection(listening.getsockname())
    acceptor.close()
    second = Acceptor(heir, taker)
    second.start()
    await taker.has(1)
    second.close()
    client.close()
    taker.close()
