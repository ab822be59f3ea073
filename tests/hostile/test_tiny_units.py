"""Clients and workers that send tiny units without end: chunks of a byte, requests ahead of answers, frames
without content. Others' requests are answered between them.

The bytes are counted that the gateway takes of an attack while it answers a good request: a gateway that
parses all that it can read before it looks at others takes megabytes for each. One that does not takes as
much only where the machine lets a request wait, so the least of several counts.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.decide.services import DECIDE
from gateway.server.http2.frames import DATA, END_HEADERS, frame
from loadtest.ports import free_port
from tests.support.blackbox.http1_bytes import SSE_HEAD, completion, post
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.scripted_worker import Call, FakeWorker, Script
from tests.support.blackbox.siege import Siege, siege
from tests.support.blackbox.tunnels import AGREED, offer
from tests.support.http2 import HELLO, POST, request
from tests.support.patience import until

NUM_GOOD = 20
MAX_TAKEN = 1 << 20
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
CLIENTS = {
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "requests": (b"", b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n"),
    "rejected requests": (b"", b"GET /nothing HTTP/1.1\r\nHost: g\r\n\r\n"),
}


class Flood:
    """Units that a thread sends until the socket is shut down; another one drops the answers."""

    def __init__(self, sock: socket.socket, first: bytes, unit: bytes) -> None:
        self.num_taken = 0
        self._sock, self._first, self._units = sock, first, unit * 500
        self._threads = [threading.Thread(target=run) for run in (self._send, self._read)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._sock.settimeout(None)
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            self._sock.close()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.sendall(self._first)
            while True:
                self._sock.sendall(self._units)
                self.num_taken += len(self._units)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._sock.recv(1 << 20):
                pass


async def flooded(under: Siege, flood: Flood) -> None:
    with flood.running():
        await until(lambda: flood.num_taken > 0, "it has begun")
        await others_are_answered(under, lambda: flood.num_taken)


async def others_are_answered(under: Siege, num_taken: Callable[[], int]) -> None:
    """Good requests are answered between the units of an attack, which goes on."""
    counts = [num_taken()]
    for number in range(NUM_GOOD):
        await under.good(f"beside {number}")
        counts.append(num_taken())
    assert min(after - before for before, after in pairwise(counts)) <= MAX_TAKEN, counts
    await until(lambda: num_taken() > counts[0], "the attack goes on")


@pytest.mark.parametrize("kind", CLIENTS)
async def test_others_are_answered_beside_a_client_with_tiny_units(kind: str) -> None:
    first, unit = CLIENTS[kind]
    async with siege() as under:
        await flooded(under, Flood(under.connect(), first, unit))


async def test_others_are_answered_beside_a_grpc_client_with_tiny_frames() -> None:
    """A message for Decide that arrives a byte at a time."""
    port, head = free_port(), [(name, DECIDE if name == b":path" else value) for name, value in POST]
    begun = HELLO + request(1, head, END_HEADERS) + frame(DATA, 0, 1, b"\0\0\xff\xff\xff")
    async with siege("--epp-port", str(port)) as under:
        await flooded(under, Flood(under.connect(port), begun, frame(DATA, 0, 1, b"x")))


async def read_all(call: Call) -> None:
    """Worker's side of a WebSocket: what comes is dropped."""
    await call.send(AGREED)
    while not call.gone.is_set():
        call.link.take(call.link.num_waiting())
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", [b"\x89", b"\x81"], ids=["pings", "texts"])
async def test_others_are_answered_beside_frames_without_content(tmp_path: Path, first: bytes) -> None:
    """Frames of a limited key are read, not only passed on."""
    key, line = new_key("--tenant", "t", "--models", "m,bad")
    file = tmp_path / "keys"
    file.write_text(line)

    async with siege("--key-file", str(file), headers=(bearer(key),)) as under, beside(under, read_all):
        sock = under.connect()
        sock.sendall(offer("/v1/realtime?model=bad", bearer(key)))
        assert (await asyncio.to_thread(sock.recv, 4096)).startswith(b"HTTP/1.1 101 ")
        await flooded(under, Flood(sock, b"", first + b"\x80\0\0\0\0"))


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("json", b"1\r\n \r\n" * 1_000),
        ("event-stream", b"1\r\n \r\n" * 1_000),
        ("event-stream", b"1800\r\n" + b"data: {}\n\ndata:\n" * 384 + b"\r\n"),
    ],
    ids=["chunks", "chunks of a stream", "events"],
)
async def test_others_are_answered_beside_a_worker_with_tiny_units(kind: str, unit: bytes) -> None:
    num_taken = 0

    async def script(call: Call) -> None:
        nonlocal num_taken
        await call.send(SSE_HEAD.replace(b"text/event-stream", b"text/" + kind.encode()))
        while not call.gone.is_set():
            await call.send(unit)
            num_taken += len(unit)

    async with siege() as under, beside(under, script):
        flood = Flood(under.connect(), post(completion(model="bad")), b"")
        with flood.running():
            await until(lambda: num_taken > 0, "it has begun")
            await others_are_answered(under, lambda: num_taken)


@contextlib.asynccontextmanager
async def beside(under: Siege, script: Script) -> AsyncIterator[FakeWorker]:
    """Worker for the model `bad`."""
    worker = await FakeWorker(("bad",), script).start()
    body = json.dumps({"url": worker.url}).encode()
    assert (await under.gateway.admin("POST", "/admin/workers", body)).status == 201
    await until(lambda: under.gateway.is_up(worker), "it has joined")
    try:
        yield worker
    finally:
        await under.gateway.drop(worker)
        await worker.die()


async def test_a_client_that_reads_no_answers_costs_little_memory() -> None:
    """No more requests are taken once their answers are left unread."""
    unit = b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n"
    async with siege() as under:
        sock = under.connect(reads_little=True)
        sock.setblocking(False)
        left, num_full = memoryview(unit * 1_000_000), 0

        def takes_no_more() -> bool:
            nonlocal left, num_full
            try:
                left, num_full = left[sock.send(left) :], 0
            except BlockingIOError:
                num_full += 1
            return not left or num_full == 100

        await until(takes_no_more, seconds=60, pause_s=0.01)
        assert left, "not all of it was taken"
        await under.good()
