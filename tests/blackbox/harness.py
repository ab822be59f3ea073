"""A real gateway process between scripted workers and raw clients.

    Client ──bytes──► Gateway (python -m kvgate serve) ──bytes──► FakeWorker (this process)

Nothing here knows the gateway's code: it is reached through its ports, flags, signals and log.
Waiting is for events, or polling with a deadline; nothing sleeps for a fixed time.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from loadtest.fleet import GATEWAY
from loadtest.ports import free_port
from tests.support.gateway_process import split
from tests.support.patience import patience, until

Header = tuple[bytes, bytes]

DEADLINE_S = patience(20)
"""Timeout for anything that should happen at once; long, since a loaded machine is no failure."""
START_S = 60.0
"""Timeout for a process that starts, on an idle machine: it reads files and may compete with many others."""
PATIENT = "KVGATE_TOKENIZER_TIMEOUT_S=600"
"""Flag for tests of a prompt's tokens: a busy machine takes longer for a worker's /tokenize than is usual."""

ROOT = Path(__file__).parents[2]
FAULTS = re.compile(r"Traceback|\bERROR\b|\bCRITICAL\b|task .* died|Warning")
"""Log lines that a healthy gateway never writes."""

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def wire(status: int, body: bytes = b"", *headers: Header, length: bool = True) -> bytes:
    """Whole answer, byte for byte."""
    lines = [b"HTTP/1.1 %d Whatever" % status, *(n + b": " + v for n, v in headers)]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*parts: bytes, end: bool = True) -> bytes:
    out = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return out + b"0\r\n\r\n" if end else out


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
ASKS_USAGE = b'"stream_options":{"include_usage":true},'


def event(text: str, **more: object) -> bytes:
    """Event of a completion stream, as vLLM writes it."""
    fields = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": text}], **more}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


# the worker --------------------------------------------------------------------------------------

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

    async def start(self) -> "FakeWorker":
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


# the client --------------------------------------------------------------------------------------


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


def request(
    method: str, target: str, body: bytes | None = None, *headers: Header, version: str = "1.1"
) -> bytes:
    """Bytes of a request; a body has its Content-Length unless the headers frame it."""
    lines = [f"{method} {target} HTTP/{version}".encode(), b"Host: gateway"]
    lines += [name + b": " + value for name, value in headers]
    framed = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)
    if body is not None and not framed:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def completion(prompt: object = "hi", model: str = "m", **fields: object) -> bytes:
    return json.dumps({"model": model, "prompt": prompt, **fields}).encode()


def post(body: bytes, *headers: Header, target: str = COMPLETIONS, version: str = "1.1") -> bytes:
    return request("POST", target, body, *headers, version=version)


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


# the gateway -------------------------------------------------------------------------------------


class Gateway:
    """Gateway process, from its first log line to its exit code."""

    def __init__(self, process: asyncio.subprocess.Process, flags: Sequence[str] = ()) -> None:
        self.process = process
        self.flags = flags
        self.log: list[str] = []
        self.expected: list[str] = []
        self.port = self.admin_port = 0
        self._reader = asyncio.get_running_loop().create_task(self._read_log())

    @classmethod
    async def start(cls, *flags: str) -> "Gateway":
        given, environment = split(flags)
        arguments = ["serve", "--port", "0", "--admin-port", "0", "--events", "off"]
        process = await asyncio.create_subprocess_exec(
            *GATEWAY,
            *arguments,
            *given,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        gateway = cls(process, flags)
        line = await gateway.logged(r"listening on https?://\S+:(\d+), admin on http://\S+:(\d+)", START_S)
        gateway.port, gateway.admin_port = int(line[1]), int(line[2])
        return gateway

    async def repair(self) -> None:
        """Start again where a test has ended the process, so that it fails that test only."""
        if self.process.returncode is not None:
            vars(self).update(vars(await Gateway.start(*self.flags)))

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.exited()

    async def exited(self) -> int:
        try:
            async with asyncio.timeout(DEADLINE_S):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise AssertionError("the gateway did not stop:\n" + "\n".join(self.log)) from None
        finally:
            await self._reader
        return code

    async def logged(self, pattern: str, seconds: float = 20.0) -> re.Match[str]:
        """Wait for and return the first log line that matches."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(m for m in (re.search(pattern, line) for line in self.log) if m)
            assert found or self.process.returncode is None, "\n".join(self.log)
            return bool(found)

        await until(look, f"log line {pattern!r}", seconds)
        return found[0]

    def faults(self) -> list[str]:
        """Lines of the log that a healthy gateway never writes, with the traceback behind them."""
        return [
            "\n".join(self.log[i : i + 40]) if "Traceback" in line else line
            for i, line in enumerate(self.log)
            if FAULTS.search(line) and line not in self.expected
        ]

    async def expect_fault(self, pattern: str) -> None:
        """Expect a log line of this test once; the next such line is a fault."""
        self.expected.append((await self.logged(pattern)).string)

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def admin(self, method: str, path: str, body: bytes | None = None, *headers: Header) -> Answer:
        client = await Client.open(self.admin_port)
        try:
            kind = () if headers else ((b"Content-Type", b"application/json"),)
            sent = request(method, path, body, (b"Connection", b"close"), *kind, *headers)
            return await client.ask(sent.replace(b"Host: gateway", b"Host: localhost", 1))
        finally:
            await client.close()

    async def endpoint(self, worker: FakeWorker) -> dict[str, Any] | None:
        endpoints = (await self.admin("GET", "/admin/workers")).json["endpoints"]
        return next((e for e in endpoints if e["url"] == worker.url), None)

    async def is_up(self, worker: FakeWorker) -> bool:
        endpoint = await self.endpoint(worker)
        return bool(endpoint and endpoint["workers"] and endpoint["workers"][0]["is_up"])

    async def join(self, worker: FakeWorker) -> None:
        await self.admin("POST", "/admin/workers", json.dumps({"url": worker.url}).encode())
        await until(lambda: self.is_up(worker), f"{worker.url} joined")

    async def drop(self, worker: FakeWorker) -> None:
        await self.admin("DELETE", f"/admin/workers/{worker.url}")

    async def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page by name and labels."""
        page = (await self.admin("GET", "/metrics")).body.decode()
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def total(self, name: str) -> float:
        """Sum over a metric's labels."""
        samples = (await self.metrics()).items()
        return sum(value for key, value in samples if key == name or key.startswith(name + "{"))

    async def _read_log(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())


@dataclass
class Bench:
    """A gateway, with a test's workers and clients; all is closed and checked at the end.

    `tls` is the clients' TLS context, None for plain HTTP.
    """

    gateway: Gateway
    tls: ssl.SSLContext | None = None
    workers: list[FakeWorker] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def worker(
        self, *models: str | dict[str, Any], script: Script = answer_ok, **how: Any
    ) -> FakeWorker:
        """Add a worker and wait until it has joined; by default it serves the model `m`."""
        worker = await FakeWorker(models or ("m",), script, **how).start()
        self.workers.append(worker)
        await self.gateway.join(worker)
        return worker

    async def client(self, *, small_buffer: bool = False) -> Client:
        client = await Client.open(self.gateway.port, small_buffer=small_buffer, tls=self.tls)
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Answer:
        """Send a request on a connection of its own: polls would use up the gateway's open files."""
        client = await Client.open(self.gateway.port, tls=self.tls)
        try:
            return await client.ask(data)
        finally:
            await client.close()

    async def nothing_in_flight(self) -> None:
        async def is_idle() -> bool:
            return await self.gateway.total("kvgate_worker_requests_in_flight") == 0

        await until(is_idle, "no requests in flight")
        endpoints = (await self.gateway.admin("GET", "/admin/workers")).json["endpoints"]
        loads = [(w["in_flight"], w["booked_tokens"]) for e in endpoints for w in e["workers"]]
        assert set(loads) <= {(0, 0)}, loads

    async def close(self) -> None:
        """Close clients and workers; whatever fails, none of them stays at a gateway of several tests."""
        async with contextlib.AsyncExitStack() as stack:  # in the opposite order
            for worker in self.workers:
                stack.push_async_callback(worker.die)
            if self.gateway.process.returncode is None:
                for worker in self.workers:
                    stack.push_async_callback(self.gateway.drop, worker)
                stack.push_async_callback(self.nothing_in_flight)
            for client in self.clients:
                stack.push_async_callback(client.close)
        faults: Iterable[object] = [f for worker in self.workers for f in worker.faults]
        assert not list(faults)


async def refusal(*flags: str) -> str:
    """Error output of a gateway that does not start with these flags.

    It must end with 2 and no traceback.
    """
    given, environment = split(flags)
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "serve", "--port", "0", "--admin-port", "0", *given),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(patience(START_S)):
        _, printed = await process.communicate()
    assert process.returncode == 2, printed.decode()
    assert "Traceback" not in printed.decode(), printed.decode()
    return printed.decode()


@contextlib.asynccontextmanager
async def lasting(*flags: str) -> AsyncIterator[Gateway]:
    """Gateway for several tests, each of which is `visiting` it."""
    gateway = await Gateway.start(*flags)
    try:
        yield gateway
    finally:
        code = await gateway.stop()
    assert code == 0, "\n".join(gateway.log)
    assert not gateway.faults(), "\n".join(gateway.faults())


@contextlib.asynccontextmanager
async def visiting(gateway: Gateway, tls: ssl.SSLContext | None = None) -> AsyncIterator[Bench]:
    """Use the shared gateway without workers; those that the test adds are dropped after it."""
    await gateway.repair()
    num_faults = len(gateway.faults())
    bench = Bench(gateway, tls)
    try:
        yield bench
    finally:
        await bench.close()
    assert gateway.process.returncode is None, "a test of a gateway of several ended it"
    assert not gateway.faults()[num_faults:], "\n".join(gateway.log[-40:])


@contextlib.asynccontextmanager
async def running(*flags: str, exit_code: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Bench]:
    """Gateway of one test, with these flags."""
    gateway = await Gateway.start(*flags)
    bench = Bench(gateway, tls)
    try:
        yield bench
    finally:
        try:
            await bench.close()
        finally:
            code = await gateway.stop()
    assert code == exit_code, "\n".join(gateway.log)
    assert not gateway.faults(), "\n".join(gateway.log)
