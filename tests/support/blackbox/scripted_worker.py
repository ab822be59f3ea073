"""Worker on a socket of this process: it answers probes as vLLM does, and requests by a script."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, cast

from loadtest.ports import free_port
from tests.support.blackbox.http1_bytes import ASKS_USAGE, Header, wire
from tests.support.patience import until

METRICS = """\
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1
"""


class Call:
    """Request as it reached a worker, and the means to answer it."""

    def __init__(self, link: "Link", head: bytes, body: bytes) -> None:
        self.link = link
        self.head = head
        self.body = body
        first, *lines = head.split(b"\r\n")
        self.method, self.target, _ = first.split(b" ")
        self.headers = [cast(Header, tuple(line.split(b": ", 1))) for line in lines]

    def values(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.headers if known.lower() == name]

    def value(self, name: bytes) -> bytes | None:
        found = self.values(name)
        assert len(found) < 2, f"{name!r} came {len(found)} times"
        return found[0] if found else None

    @property
    def wish(self) -> bytes:
        """Body without the injected request for usage."""
        return self.body.replace(ASKS_USAGE, b"", 1)

    @property
    def gone(self) -> asyncio.Event:
        """Set when the gateway has closed this connection."""
        return self.link.gone

    async def send(self, data: bytes) -> None:
        self.link.write(data)
        await self.link.can_write.wait()
        await asyncio.sleep(0)  # a transport that has failed reports its end in the next iteration

    async def beyond(self, num_bytes: int) -> bytes:
        """Bytes after this request that are no other request."""
        await until(lambda: self.link.num_waiting() >= num_bytes, f"{num_bytes} bytes behind the head")
        return self.link.take(num_bytes)

    def close(self) -> None:
        self.link.close()

    def reset(self) -> None:
        self.link.reset()

    def hold(self, is_held: bool) -> None:
        """Pause reading, or resume it."""
        self.link.hold(is_held)


Script = Callable[[Call], Awaitable[None]]


async def answer_ok(call: Call) -> None:
    await call.send(wire(200, b'{"ok":true}', (b"Content-Type", b"application/json")))


def says(data: bytes, *, then_close: bool = False) -> Script:
    async def script(call: Call) -> None:
        await call.send(data)
        if then_close:
            call.close()

    return script


async def hang(call: Call) -> None:
    """Wait until the gateway gives up."""
    await call.gone.wait()


class Link(asyncio.Protocol):
    """Connection to a fake worker; requests on it are served one after the other."""

    def __init__(self, worker: "FakeWorker") -> None:
        self.worker = worker
        self.gone = asyncio.Event()
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.num_calls = 0
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.worker.links.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.links.discard(self)
        self.gone.set()
        self.can_write.set()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None and (request := self._next()):
            self._task = asyncio.get_running_loop().create_task(self._serve(*request))

    def write(self, data: bytes) -> None:
        if not self.gone.is_set():
            self._transport.write(data)

    def num_waiting(self) -> int:
        return len(self._buffer)

    def take(self, num_bytes: int) -> bytes:
        taken, self._buffer = bytes(self._buffer[:num_bytes]), self._buffer[num_bytes:]
        return taken

    def hold(self, is_held: bool) -> None:
        if is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        if sock := self._transport.get_extra_info("socket"):  # none where TLS has just ended by itself
            with contextlib.suppress(OSError):  # the gateway has just closed it
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def end(self) -> None:
        self._transport.abort()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _next(self) -> tuple[bytes, bytes] | None:
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
        if found and not length and b"\r\ntransfer-encoding: chunked" in head.lower():
            return self._next_chunked(head, rest)
        num_bytes = int(length[1]) if length else 0
        if not found or len(rest) < num_bytes:
            return None
        self._buffer = bytearray(rest[num_bytes:])
        return head, rest[:num_bytes]

    def _next_chunked(self, head: bytes, rest: bytes) -> tuple[bytes, bytes] | None:
        """The gateway sends no chunks; other proxies do."""
        parts, at = [], 0
        while (end := rest.find(b"\r\n", at)) >= 0:
            size = int(rest[at:end], 16)
            if len(rest) < end + size + 4:
                return None
            parts.append(rest[end + 2 : end + 2 + size])
            at = end + size + 4
            if not size:
                self._buffer = bytearray(rest[at:])
                return head, b"".join(parts)
        return None

    async def _serve(self, head: bytes, body: bytes) -> None:
        request: tuple[bytes, bytes] | None = (head, body)
        while request:
            await self.worker.serve(Call(self, *request))
            request = self._next()
        self._task = None


class FakeWorker:
    """Worker that answers probes as vLLM does, and forwarded requests by `script`."""

    def __init__(
        self,
        models: Sequence[str | dict[str, Any]] = ("m",),
        script: Script = answer_ok,
        *,
        tls: ssl.SSLContext | None = None,
        unix_path: str | None = None,
    ) -> None:
        self.tls = tls
        self.unix_path = unix_path
        self.models = models
        self.script = script
        self.calls: list[Call] = []
        self.probes: list[Call] = []
        self.prefix_script: Script | None = None  # for prompts of the gateway's own
        self.prefixes: list[Call] = []
        self.links: set[Link] = set()
        self.faults: list[BaseException] = []
        self.port = 0 if unix_path else free_port()  # kept, so that it can come back at the same port
        self.probe_s = 0.0  # duration of an answer
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return self.url.removeprefix("http://").removeprefix("https://")

    async def start(self) -> Self:
        loop = asyncio.get_running_loop()
        if self.unix_path:
            self._server = await loop.create_unix_server(lambda: Link(self), self.unix_path)
            return self
        self._server = await loop.create_server(
            lambda: Link(self), "127.0.0.1", self.port, backlog=512, ssl=self.tls
        )
        return self

    async def die(self) -> None:
        """Die as a killed process: refuse connections, and reset open ones."""
        if self._server:
            self._server.close()
            self._server = None
        for link in list(self.links):
            link.reset()
            await link.end()

    async def called(self, num: int = 1) -> Call:
        """The `num`th forwarded request, when it has come."""
        await until(lambda: len(self.calls) >= num, f"request {num} at worker {self.port}")
        return self.calls[num - 1]

    def forwarded_links(self) -> list[Link]:
        return [link for link in self.links if link.num_calls]

    async def serve(self, call: Call) -> None:
        """True for the gateway's own requests, which have no Via."""
        if call.values(b"via"):
            self.calls.append(call)
            call.link.num_calls += 1
            try:
                await self.script(call)
            except AssertionError as exc:
                self.faults.append(exc)
                call.reset()
        elif self.prefix_script is not None and call.target == b"/v1/completions":
            self.prefixes.append(call)
            await self.prefix_script(call)
        else:
            self.probes.append(call)
            await asyncio.sleep(self.probe_s)
            await call.send(self._own(call))

    def _own(self, call: Call) -> bytes:
        cards = [model if isinstance(model, dict) else {"id": model} for model in self.models]
        pages: dict[bytes, bytes] = {
            b"/health": b"",
            b"/v1/models": json.dumps({"object": "list", "data": cards}).encode(),
            b"/metrics": METRICS.encode(),
            b"/tokenize": b'{"tokens":[1,2,3]}',
        }
        page = pages.get(call.target)
        return wire(404) if page is None else wire(200, page)


async def stalls(worker: FakeWorker, num_sent: Callable[[], int]) -> None:
    """Wait until no write succeeds for a while: all buffers on the way are full."""
    last, same = -1, 0

    def is_same() -> bool:
        nonlocal last, same
        now = num_sent()
        is_blocked = any(not link.can_write.is_set() for link in worker.forwarded_links()) or now == 0
        same = same + 1 if now == last and is_blocked else 0
        last = now
        return same >= 40

    await until(is_same, "the worker is held up")
