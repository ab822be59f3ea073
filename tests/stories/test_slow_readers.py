"""Clients that read slowly: backpressure reaches the worker, and the gateway buffers little."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from gateway.app import Gateway
from gateway.config import load
from gateway.proxy.exchange import InferenceExchange
from gateway.server.connection import ClientConnection
from tests.support.blackbox.http1_bytes import chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.blackbox.strict_client import Client
from tests.support.patience import until

NUM_CLIENTS = 8
MAX_BUFFERED_BYTES = 256 << 10
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = event("x" * 1000)
NUM_EVENTS = 16_000
"""Enough events to fill all socket buffers on the way, at the largest size that Linux lets them grow to."""


async def flood(call: Call) -> None:
    """Send a stream as fast as the gateway reads it."""
    await call.send(STREAM_HEAD)
    for _ in range(NUM_EVENTS // 100):
        await call.send(chunked(EVENT * 100, end=False))
    await call.send(chunked())


async def flood_plain(call: Call) -> None:
    """Send the same bytes with a Content-Length, and not as a stream."""
    head, _, body = wire(200, EVENT * NUM_EVENTS).partition(b"\r\n\r\n")
    await call.send(head + b"\r\n\r\n")
    for at in range(0, len(body), 100_000):
        await call.send(body[at : at + 100_000])


@asynccontextmanager
async def serving(script: Callable[[Call], Awaitable[None]]) -> AsyncIterator[Gateway]:
    worker = await FakeWorker(script=script).start()
    options = {"worker": [worker.url], "port": 0, "admin_port": 0, "events": "off", "drain_timeout_s": 0.0}
    gateway = Gateway(load(options, environ={}))
    await gateway.start()
    try:
        await gateway.roster.first_look()
        yield gateway
    finally:
        await gateway.stop()
        await worker.die()


def buffered_bytes(connection: ClientConnection) -> int:
    """Bytes that wait in this process for a client's socket."""
    transport, exchange = connection._transport, cast(InferenceExchange, connection._exchange)
    assert transport is not None
    answer = exchange._answer
    assert answer is not None
    tail = len(answer._scanner._tail) if answer._scanner else 0
    kept = answer._plain.num_kept_bytes if answer._plain else 0
    return transport.get_write_buffer_size() + tail + kept


def is_paused(exchange: InferenceExchange) -> bool:
    upstream: Any = exchange._upstream
    return upstream is not None and upstream._transport is not None and not upstream._transport.is_reading()


async def check_backpressure(script: Callable[[Call], Awaitable[None]]) -> None:
    async with serving(script) as gateway:
        clients = [await Client.open(gateway.port, small_buffer=True) for _ in range(NUM_CLIENTS)]
        for client in clients:
            await client.send(post(completion(stream=True)))
        exchanges = gateway.parts.requests.dispatch.exchanges
        await until(
            lambda: len(exchanges) == NUM_CLIENTS and all(map(is_paused, exchanges)), "every worker waits"
        )
        buffered = [buffered_bytes(connection) for connection in gateway.parts.surroundings.connections]
        assert len(buffered) == NUM_CLIENTS
        assert 0 < min(buffered) <= max(buffered) <= MAX_BUFFERED_BYTES
        for client in clients:  # the whole answer arrives
            assert (await client.answer()).body == EVENT * NUM_EVENTS
            await client.close()
        await until(lambda: not exchanges, "every answer is over")


@pytest.mark.slow
def test_slow_reader_of_a_stream_pauses_its_worker() -> None:
    uvloop.run(check_backpressure(flood))


@pytest.mark.slow
def test_slow_reader_of_a_whole_answer_pauses_its_worker() -> None:
    uvloop.run(check_backpressure(flood_plain))
