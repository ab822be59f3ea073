"""Reading of PROXY protocol headers from accepted connections."""

import asyncio
import socket

from gateway.http.networks import Trusted
from gateway.http.proxy_protocol import MAX_BYTES, read

AGAIN_S = 0.005
"""Time until the rest of a header is looked for: it comes in one piece, mostly."""


def peer_of(connection: socket.socket) -> str:
    """Return the peer's address; "" for a Unix socket."""
    name = connection.getpeername()
    return str(name[0]) if isinstance(name, tuple) else ""


async def source_of(connection: socket.socket, trusted: Trusted, timeout_s: float) -> tuple[str, int] | None:
    """Read the PROXY header of a trusted peer and return the client's address; None where it names none.

    Raises OSError (TimeoutError is one) for a broken or missing header.
    """
    if not trusted.trusts(peer_of(connection)):
        return None
    connection.setblocking(False)
    async with asyncio.timeout(timeout_s):
        while True:
            await _readable(connection)
            data = connection.recv(MAX_BYTES, socket.MSG_PEEK)
            try:
                found = read(data) if data else None
            except ValueError as exc:
                raise ConnectionAbortedError(f"broken PROXY header: {exc}") from exc
            if found is not None:
                if found.num_bytes:
                    connection.recv(found.num_bytes)
                return found.source
            if not data:
                raise ConnectionAbortedError("closed before the PROXY header")
            await asyncio.sleep(AGAIN_S)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def is_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), is_readable)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())
