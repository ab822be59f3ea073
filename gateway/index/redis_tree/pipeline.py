"""Pipelined connection to Redis for frequent commands: packed by hand, answers parsed by hiredis.

Commands are answered in the order in which they were sent, so many may be under way at once. A pipeline that
is lost fails all of them and stays lost: its user opens another.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import hiredis

ELSEWHERE = ("READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING")
"""Errors of a server that is not, or not yet, the master."""


class PipelineLost(ConnectionError):
    """Redis connection lost, or the server cannot serve; commands under way may or may not have been done."""


class PipelineRejected(Exception):
    """Redis answered with an error; the command did nothing."""


class Pipeline(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self.is_open = False
        self.num_answered = 0

    def __repr__(self) -> str:
        return f"Lane(open={self.is_open}, waiting={len(self._waiting)})"

    @property
    def num_waiting(self) -> int:
        """Number of answers still to come, also of commands that were given up."""
        return len(self._waiting)

    def ask(self, packed: bytes) -> "asyncio.Future[Any]":
        """Send a packed command. The future may raise PipelineLost or PipelineRejected (an error)."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.is_open:
            answer.set_exception(PipelineLost("not connected"))
        else:
            self._waiting.append(answer)
            self._transport.write(packed)
        return answer

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except (hiredis.ProtocolError, IndexError):  # not Redis, or an answer to nothing
            self.close()

    def _take(self, data: bytes) -> None:
        self._reader.feed(data)
        while (found := self._reader.gets()) is not False:
            answer = self._waiting.popleft()
            self.num_answered += 1
            is_elsewhere = isinstance(found, Exception) and str(found).startswith(ELSEWHERE)
            if is_elsewhere:
                self.close()
            if answer.done():  # given up
                continue
            if isinstance(found, Exception):
                answer.set_exception((PipelineLost if is_elsewhere else PipelineRejected)(str(found)))
            else:
                answer.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(PipelineLost(str(exc or "closed")))
        self._waiting.clear()


def pack(*words: bytes | int) -> bytes:
    """Encode a command in the Redis protocol."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else b"%d" % word
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


async def open_pipeline(connection: Mapping[str, Any], timeout_s: float) -> Pipeline:
    """Open a pipeline to Redis. `connection` is as parse_url of redis-py returns it.

    Raises OSError, TimeoutError, PipelineLost or PipelineRejected.
    """
    async with asyncio.timeout(timeout_s):
        pipeline = await _connect(connection)
        try:
            if password := connection.get("password"):
                user = str(connection.get("username") or "default")
                await pipeline.ask(pack(b"AUTH", user.encode(), str(password).encode()))
            if database := connection.get("db"):
                await pipeline.ask(pack(b"SELECT", int(database)))
        except BaseException:
            pipeline.close()
            raise
    return pipeline


async def _connect(connection: Mapping[str, Any]) -> Pipeline:
    loop = asyncio.get_running_loop()
    if path := connection.get("path"):
        return (await loop.create_unix_connection(Pipeline, path))[1]
    host, port = connection.get("host", "127.0.0.1"), connection.get("port", 6379)
    return (await loop.create_connection(Pipeline, host, port, ssl=_tls(connection)))[1]


def _tls(connection: Mapping[str, Any]) -> ssl.SSLContext | None:
    files = {"ssl_ca_certs", "ssl_certfile"}
    if not files & connection.keys() and "ssl" not in str(connection.get("connection_class", "")).lower():
        return None
    context = ssl.create_default_context(cafile=connection.get("ssl_ca_certs"))
    if certificate := connection.get("ssl_certfile"):
        context.load_cert_chain(certificate, connection.get("ssl_keyfile"))
    return context
