"""Clients that drip, and clients that disconnect half-way: no memory is held for them, and no error
logged.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from tests.support.blackbox.bench import Bench, lasting, running, visiting
from tests.support.blackbox.black_hole import IDS, BlackHole
from tests.support.blackbox.http1_bytes import completion, post, request
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import Call, FakeWorker, hang
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import patience, until

LIMITS = ("--head-timeout-s", "0.6", "--body-timeout-s", "0.6", "KVGATE_MIN_BODY_RATE=100000")
CHUNKED = (b"Transfer-Encoding", b"chunked")

DRIPS = {
    "request line": (b"GET /", b"x"),
    "header": (b"GET /health HTTP/1.1\r\nA: ", b"x"),
    "headers": (b"GET /health HTTP/1.1\r\n", b"A: b\r\n"),
    "body": (post(b"", (b"Content-Length", b"100000")), b"x"),
    "chunks": (post(b"", CHUNKED), b"1\r\nx\r\n"),
    "chunk extension": (post(b"1;", CHUNKED), b"x"),
    "chunk's size": (post(b"", CHUNKED), b"0"),
    "trailers": (post(b"0\r\n", CHUNKED), b"A: b\r\n"),
}


async def test_dripping_clients_are_cut() -> None:
    """Each drop comes long before the limit between two of them."""
    async with running(*LIMITS) as bench:
        worker = await bench.worker()
        await asyncio.gather(*(is_ended(bench, begun, drop) for begun, drop in DRIPS.values()))
        assert not worker.calls


async def is_ended(bench: Bench, begun: bytes, drop: bytes) -> None:
    client = await bench.client()
    await client.send(begun)
    dripping = asyncio.get_running_loop().create_task(drip(client, drop))
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout"), begun
    await client.ends()
    dripping.cancel()


async def drip(client: Client, drop: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await client.send(drop)
            await asyncio.sleep(0.02)


async def test_a_client_that_drips_empty_lines_is_closed() -> None:
    """The client has sent no request, so it gets no answer."""
    async with running(*LIMITS, "--keep-alive-s", "0.4") as bench:
        for begun in (b"", request("GET", "/health")):
            client = await bench.client()
            await client.send(begun)
            if begun:
                assert (await client.answer()).status == 200
            dripping = asyncio.get_running_loop().create_task(drip(client, b"\r\n"))
            await client.is_cut()
            dripping.cancel()


# disconnects -------------------------------------------------------------------------------------


def log_of(bench: Bench) -> list[str]:
    """Warnings and errors, without counts of repeats in other tests, which the shared gateway logs later."""
    lines = [line for line in bench.gateway.log if " WARNING " in line or " ERROR " in line]
    return [line for line in lines if not re.search(r"\([\d,]+ more in \d+ s\)$", line)]


async def leave(client: Client, how: str) -> None:
    if how == "resets":
        client.reset()
    elif how == "half-closes":
        client.half_close()
        await client.is_cut()
    else:
        await client.close()


LEAVINGS = ["closes", "resets", "half-closes"]


@pytest.mark.parametrize("how", LEAVINGS)
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"\r\n",
        b"GET /hea",
        post(completion())[:60],
        post(completion())[:-5],
        post(completion(), (b"Expect", b"100-continue"))[: -len(completion())],
        post(b"1e\r\n{", CHUNKED),
        post(b"0\r\nA: ", CHUNKED),
    ],
    ids=["nothing", "empty line", "line", "head", "body", "100", "chunk", "trailer"],
)
async def test_a_client_may_disconnect_before_its_request_is_whole(
    bench: Bench, how: str, begun: bytes
) -> None:
    worker = await bench.worker()
    logged = log_of(bench)
    client = await bench.client()
    await client.send(begun)
    await leave(client, how)
    assert (await bench.ask(request("GET", "/health"))).status == 200
    await bench.nothing_in_flight()
    assert not worker.calls
    assert log_of(bench) == logged


@pytest.mark.parametrize("how", LEAVINGS)
async def test_a_client_may_disconnect_while_the_worker_computes(bench: Bench, how: str) -> None:
    worker = await bench.worker(script=hang)
    logged = log_of(bench)
    client = await bench.client()
    await client.send(post(completion(IDS)) * 3)  # two wait behind it
    call = await worker.called()
    await leave(client, how)
    async with asyncio.timeout(patience(20)):
        await call.gone.wait()
    await bench.nothing_in_flight()
    assert len(worker.calls) == 1
    assert log_of(bench) == logged


class SlowToTokenize(FakeWorker):
    """Worker with a /tokenize that never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Call] = []

    async def serve(self, call: Call) -> None:
        if call.target == b"/tokenize":
            self.asked.append(call)
            return await hang(call)
        return await super().serve(call)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def patient() -> AsyncIterator[Gateway]:
    """Gateway that would wait for the tokenizer for ever."""
    waits = ("KVGATE_TOKENIZER_TIMEOUT_S=600", "--connect-timeout-s", "600", "--no-tokenizer-probe")
    async with lasting(*waits, "--probe-interval-s", "60", "--probe-timeout-s", "30") as gateway:
        yield gateway


@pytest.mark.parametrize("how", LEAVINGS)
async def test_a_client_may_disconnect_while_its_prompt_is_tokenized(patient: Gateway, how: str) -> None:
    """Requests of disconnected clients are not sent to the worker."""
    async with visiting(patient) as bench:
        has_left = await leaving(bench)
        worker = SlowToTokenize()
        bench.workers.append(await worker.start())
        await bench.gateway.join(worker)
        logged = log_of(bench)
        client = await bench.client()
        await client.send(post(completion("a prompt in words")))
        await until(lambda: len(worker.asked) == 1, "a prompt at /tokenize")
        await leave(client, how)
        await until(has_left, "the client's leaving is counted")
        await bench.nothing_in_flight()
        async with asyncio.timeout(patience(20)):
            await worker.asked[0].gone.wait()
        assert not worker.calls
        assert log_of(bench) == logged


@pytest.mark.parametrize("how", LEAVINGS)
async def test_a_client_may_disconnect_while_the_gateway_connects(patient: Gateway, how: str) -> None:
    async with visiting(patient) as bench:
        has_left = await leaving(bench)
        dark = await bench.worker()
        logged = log_of(bench)
        await dark.die()
        hole = BlackHole(dark)
        try:
            client = await bench.client()
            await client.send(post(completion(IDS)))
            await until(lambda: _is_in_flight(bench), "the request is booked")
            await leave(client, how)
            await until(has_left, "the client's leaving is counted")
            await bench.nothing_in_flight()
        finally:
            hole.close()
        assert log_of(bench) == logged


async def leaving(bench: Bench) -> Callable[[], Awaitable[bool]]:
    """Wait until one more client has disconnected than now."""
    name = "kvgate_client_disconnects_total"
    before = await bench.gateway.total(name)

    async def has_left() -> bool:
        return await bench.gateway.total(name) == before + 1

    return has_left


async def _is_in_flight(bench: Bench) -> bool:
    return await bench.gateway.total("kvgate_worker_requests_in_flight") == 1


async def test_a_rejected_client_that_goes_on_sending_gets_its_answer(bench: Bench) -> None:
    """A reset while it still sends must not cost the client the response."""
    client = await bench.client()
    await client.send(post(b"x" * 100_000, (b"Content-Length", b"99999999999")))
    with contextlib.suppress(ConnectionError, Cut):
        for _ in range(100):
            await client.send(b"x" * 10_000)
    assert (await client.answer()).status == 413
