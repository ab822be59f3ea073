"""First bytes: TLS or plain, and clients that speak neither HTTP/2 nor TLS."""

import asyncio
import socket

import pytest

from gateway.server.http2.first_bytes import is_tls, mistaken_for
from gateway.server.http2.frames import PREFACE


@pytest.mark.parametrize(
    ("first", "found"), [(b"\x16\x03\x01\x02\x00", True), (PREFACE, False), (b"G", False)]
)
async def test_the_first_byte_is_looked_at_and_stays(first: bytes, found: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(first)
        assert await is_tls(ours, 20.0) is found
        assert await asyncio.get_running_loop().sock_recv(ours, 100) == first


async def test_a_client_without_a_first_byte_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, pytest.raises(TimeoutError):
            await is_tls(ours, 0.01)
        with pytest.raises(ConnectionAbortedError):
            await is_tls(ours, 20.0)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (PREFACE, ""),
        (PREFACE[:7], ""),
        (b"", ""),
        (b"GET / HTTP/1.1\r\n", "HTTP/1.1"),
        (b"POST /v1/comp", "HTTP/1.1"),
        (b"\x16\x03\x01", "TLS"),
        (b"\x00garbage", "neither TLS nor HTTP/2"),
    ],
)
def test_mistaken_clients_are_named(first: bytes, words: str) -> None:
    assert words in mistaken_for(first) and bool(words) == bool(mistaken_for(first))
