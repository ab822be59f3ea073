"""Sockets between workers: lines of JSON, as NIXL's side channel and the transfer itself in one.

hello   identity, and the settings that must fit    → engine_id, fit
pull    the blocks of `key`, once; they are sent    → num_tokens, digest; or error
done    they have arrived: free them                → ok
renew   the decode worker still waits for `key`     → ok
drop    `key` will not be pulled                    → ok
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

RETRY_S = 0.02  # as ZeroMQ: an absent peer is retried until time is up
Message = dict[str, Any]
TalkHandler = Callable[[Message, "ChannelConnection"], Awaitable[Message | None]]


class ChannelError(Exception):
    """The other worker is gone, or returned an error."""


class ChannelConnection:
    """Connection, seen by the worker that is called. `key`: the blocks being pulled over it."""

    def __init__(self) -> None:
        self.key: str | None = None


class TransferChannel:
    """Server side of the channel. `answer` returns the reply to each message, None for none; `gone` is called
    for broken connections."""

    def __init__(self, answer: TalkHandler, gone: Callable[[ChannelConnection], None]) -> None:
        self._answer = answer
        self._gone = gone
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises OSError where the port is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        talk = ChannelConnection()
        try:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                while line := await reader.readline():
                    answer = await self._answer(msgspec.json.decode(line), talk)
                    if answer is not None:
                        writer.write(msgspec.json.encode(answer) + b"\n")
                        await writer.drain()
        finally:
            self._gone(talk)
            self._writers.discard(writer)
            writer.close()


class ChannelClient:
    """Connection to another worker's channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int, retries: bool) -> "ChannelClient":
        """Connect. With `retries` until the caller's patience ends, else ChannelError at once."""
        while True:
            try:
                return cls(*await asyncio.open_connection(host, port))
            except OSError as exc:
                if not retries:
                    raise ChannelError(f"{host}:{port}: {exc.strerror or exc}") from exc
                await asyncio.sleep(RETRY_S)

    async def ask(self, **message: Any) -> Message:
        try:
            self._writer.write(msgspec.json.encode(message) + b"\n")
            line = await self._reader.readline()
        except OSError as exc:
            raise ChannelError(str(exc)) from exc
        if not line:
            raise ChannelError("closed by the other worker")
        answer: Message = msgspec.json.decode(line)
        if "error" in answer:
            raise ChannelError(answer["error"])
        return answer

    def close(self) -> None:
        self._writer.close()
