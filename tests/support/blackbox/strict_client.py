"""Client of a gateway over a raw connection; it reads answers as strictly as the RFC allows."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any, cast

from tests.support.blackbox.http1_bytes import Header
from tests.support.patience import patience

DEADLINE_S = patience(20)
"""Timeout for anything that should happen at once; long, since a loaded machine is no failure."""


class Cut(Exception):
    """Connection that ended before the answer did; `body` is the part that arrived."""

    def __init__(self, body: bytes = b"") -> None:
        super().__init__(body[-200:])
        self.body = body


@dataclass
class Answer:
    """Response of the gateway. `num_interim` counts the 1xx before it."""

    status: int
    headers: list[Header]
    body: bytes = b""
    num_interim: int = 0

    def values(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.headers if known == name]

    def value(self, name: bytes) -> bytes | None:
        found = self.values(name)
        assert len(found) < 2, f"{name!r} came {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI error object, with its form checked."""
        assert self.value(b"content-type") == b"application/json"
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"]
        return cast(dict[str, Any], error)


class Client:
    """Connection to the gateway; reads responses as strictly as the RFC allows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left: int | None = 0  # bytes of the body to come; None: until the end
        self._is_chunked = False
        self._events = b""

    @classmethod
    async def open(
        cls, port: int, *, small_buffer: bool = False, tls: ssl.SSLContext | None = None
    ) -> "Client":
        sock = socket.socket(proto=socket.IPPROTO_TCP)  # or asyncio leaves Nagle on
        if small_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        name = "127.0.0.1" if tls else None
        return cls(*await asyncio.open_connection(sock=sock, limit=1 << 16, ssl=tls, server_hostname=name))

    @classmethod
    async def open_unix(cls, path: str) -> "Client":
        return cls(*await asyncio.open_unix_connection(path, limit=1 << 16))

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            self._writer.write(data)
            await self._writer.drain()

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer(is_head=data.startswith(b"HEAD "))

    async def answer(self, *, is_head: bool = False) -> Answer:
        """Next response, complete. Raises Cut."""
        answer = await self.head(is_head=is_head)
        try:
            while piece := await self.piece():
                answer.body += piece
        except Cut:
            raise Cut(answer.body) from None
        return answer

    async def head(self, *, is_head: bool = False) -> Answer:
        """Head of the next response; its body is read by `piece` or `event`. Raises Cut."""
        num_interim = 0
        while True:
            first, *lines = (await self._until(b"\r\n\r\n"))[:-4].split(b"\r\n")
            matched = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [\x20-\x7e]*", first)
            assert matched, f"not a status line: {first!r}"
            status = int(matched[1])
            if status >= 200:
                break
            num_interim += 1
        headers = []
        for line in lines:
            name, _, value = line.partition(b": ")
            headers.append((name.lower(), value))
        answer = Answer(status, headers, num_interim=num_interim)
        self._frame(answer, is_head)
        return answer

    async def piece(self) -> bytes:
        """Read a piece of the body; empty at its end. Raises Cut."""
        if self._is_chunked:
            size = int(await self._until(b"\r\n"), 16)
            data = (await self._exactly(size + 2))[:-2]
            self._is_chunked = size > 0
            return data
        if self._left == 0:
            return b""
        data = await self._some(self._left or 1 << 16)
        if self._left is not None:
            if not data:
                raise Cut
            self._left -= len(data)
        elif not data:
            self._left = 0
        return data

    async def event(self) -> bytes:
        """Next whole event of a streamed body."""
        while b"\n\n" not in self._events:
            piece = await self.piece()
            assert piece, f"the stream ended in {self._events!r}"
            self._events += piece
        first, _, self._events = self._events.partition(b"\n\n")
        return first + b"\n\n"

    async def switched(self) -> dict[bytes, bytes]:
        """Headers of the expected 101; from then on there is no HTTP."""
        first, *lines = (await self._until(b"\r\n\r\n"))[:-4].split(b"\r\n")
        assert first == b"HTTP/1.1 101 Switching Protocols", first
        headers = [line.split(b": ", 1) for line in lines]
        found = {name.lower(): value for name, value in headers}
        assert len(found) == len(headers), "a header came twice"
        return found

    async def exactly(self, num_bytes: int) -> bytes:
        """Read exactly this number of bytes."""
        return await self._exactly(num_bytes)

    async def ends(self) -> None:
        """Check that the gateway closes without further bytes."""
        assert await self._some(1 << 16) == b""

    async def is_cut(self) -> None:
        """Wait for the end of the connection, by FIN or reset."""
        with contextlib.suppress(Cut):
            while await self._some(1 << 16):
                pass

    def certificate(self) -> str:
        """Serial number of the gateway's certificate."""
        return str(self._writer.get_extra_info("peercert")["serialNumber"])

    def half_close(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # TLS: unread bytes
            await self._writer.wait_closed()

    def _frame(self, answer: Answer, is_head: bool) -> None:
        length, coding = answer.value(b"content-length"), answer.value(b"transfer-encoding")
        assert length is None or coding is None, "two framings"
        self._is_chunked = coding == b"chunked" and not is_head
        if is_head or answer.status in (204, 304) or self._is_chunked:
            self._left = 0
        else:
            self._left = None if length is None else int(length)
        if self._left is None:
            assert answer.value(b"connection") == b"close", "no framing on a kept connection"

    async def _until(self, border: bytes) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._reader.readuntil(border)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise Cut(getattr(exc, "partial", b"")) from None

    async def _exactly(self, num_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._reader.readexactly(num_bytes)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise Cut(getattr(exc, "partial", b"")) from None

    async def _some(self, num_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._reader.read(num_bytes)
        except ConnectionError:
            raise Cut from None
