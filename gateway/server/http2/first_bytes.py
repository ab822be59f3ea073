"""First bytes of a client: TLS or not, and what a client that does not speak HTTP/2 takes the port for."""

import asyncio
import socket
from typing import Final

from gateway.server.http2.frames import PREFACE

TLS_HANDSHAKE: Final = 0x16
"""Record type of a ClientHello; HTTP/2's preface begins with 'P'."""

_METHODS: Final = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT ")


async def is_tls(connection: socket.socket, timeout_s: float) -> bool:
    """Look at the first byte without taking it. Raises OSError (TimeoutError is one) where none comes."""
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def is_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), is_readable)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(connection.fileno())
    first = connection.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionAbortedError("closed before its first byte")
    return first[0] == TLS_HANDSHAKE


def mistaken_for(first: bytes) -> str:
    """Describe a client that does not begin with HTTP/2's preface; "" for one that does."""
    if PREFACE.startswith(first):
        return ""
    if first[0] == TLS_HANDSHAKE:
        return "TLS within TLS, or a ClientHello where TLS is not possible"
    if first.startswith(_METHODS):
        return "HTTP/1.1: this port speaks gRPC (HTTP/2) only, clients of the proxy belong to --port"
    return f"neither TLS nor HTTP/2: it begins with {first[:12]!r}"
