"""Peer that speaks ZMTP 3.1 by hand, and sends messages that no libzmq would: without an end."""

import asyncio
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
PART = b"x" * (1 << 18)
MORE = b"\x03" + struct.pack(">Q", len(PART)) + PART
"""A part of a message that has further parts."""


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


def ready(kind: bytes) -> bytes:
    body = b"\x05READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"")
    return b"\x04" + bytes([len(body)]) + body


class EndlessPeer:
    """Peer that sends parts of one message to each connection, `most` bytes in all, and keeps it open.

    `kind` is PUB or ROUTER; `num_cut` counts the connections that the other side ended before all was sent.
    """

    def __init__(self, kind: bytes, most: int) -> None:
        self._kind = kind
        self._left = most
        self.num_cut = 0
        self._is_closing = False
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._left, self._is_closing = 0, True
        self._server.close()
        for writer in self._serving.values():
            writer.transport.abort()
        await asyncio.gather(*self._serving)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._serving[task] = writer
        try:
            writer.write(GREETING)
            await reader.readexactly(len(GREETING))
            writer.write(ready(self._kind))
            await reader.read(100)
            while self._left > 0:
                self._left -= len(MORE)
                writer.write(MORE)
                await writer.drain()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            self.num_cut += not self._is_closing
        writer.close()
