"""Source of a connection by its PROXY header, over real sockets."""

import asyncio
import socket

import pytest

from gateway.http.networks import Trusted
from gateway.server.proxy_protocol import peer_of, source_of
from tests.support.blackbox.proxy_headers import V1_LINE, v2

LOOPBACK = Trusted(["127.0.0.0/8"], "x")
NONE_TRUSTED = Trusted([], "x")


class Pair:
    """Connection over loopback, with both of its ends."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.far = socket.create_connection(listening.getsockname())
            self.near, _ = listening.accept()

    def rest(self) -> bytes:
        self.near.setblocking(True)
        self.near.settimeout(20)
        return self.near.recv(100)

    def close(self) -> None:
        self.far.close()
        self.near.close()


@pytest.mark.parametrize("header", [V1_LINE, v2()])
async def test_a_header_is_read_and_the_bytes_behind_it_stay(header: bytes) -> None:
    pair = Pair()
    pair.far.sendall(header + b"GET")
    assert await source_of(pair.near, LOOPBACK, 20) == ("203.0.113.7", 1234)
    assert pair.rest() == b"GET"
    pair.close()


async def test_a_header_may_arrive_in_pieces() -> None:
    pair = Pair()
    pair.far.sendall(V1_LINE[:9])
    finding = asyncio.get_running_loop().create_task(source_of(pair.near, LOOPBACK, 20))
    await asyncio.sleep(0)
    pair.far.sendall(V1_LINE[9:])
    assert await finding == ("203.0.113.7", 1234)
    pair.close()


async def test_a_connection_without_a_header_has_its_own_source() -> None:
    pair = Pair()
    pair.far.sendall(b"GET / HTTP/1.1")
    assert await source_of(pair.near, LOOPBACK, 20) is None
    assert pair.rest() == b"GET / HTTP/1.1"
    pair.close()


async def test_the_header_of_an_untrusted_peer_is_not_read() -> None:
    pair = Pair()
    pair.far.sendall(V1_LINE)
    assert await source_of(pair.near, NONE_TRUSTED, 20) is None
    assert pair.rest() == V1_LINE
    pair.close()


async def test_a_missing_or_broken_header_is_an_error() -> None:
    pair = Pair()
    pair.far.sendall(V1_LINE[:9])
    pair.far.shutdown(socket.SHUT_WR)
    with pytest.raises(TimeoutError):
        await source_of(pair.near, LOOPBACK, 0.05)
    pair.close()
    pair = Pair()
    pair.far.close()
    with pytest.raises(ConnectionAbortedError, match="closed before the PROXY header"):
        await source_of(pair.near, LOOPBACK, 20)
    pair.close()
    pair = Pair()
    pair.far.sendall(b"PROXY TCP4 x\r\n")
    with pytest.raises(ConnectionAbortedError, match="broken PROXY header"):
        await source_of(pair.near, LOOPBACK, 20)
    pair.close()


def test_peers_have_addresses_or_none() -> None:
    pair = Pair()
    assert peer_of(pair.near) == "127.0.0.1"
    pair.close()
    first, second = socket.socketpair()
    assert peer_of(first) == ""
    first.close()
    second.close()
