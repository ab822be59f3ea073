"""Clients with TLS, and clients without it at a TLS port."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.blackbox.bench import Bench, lasting, running, visiting
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, request, wire
from tests.support.blackbox.real_gateway import Gateway, refusal
from tests.support.blackbox.scripted_worker import Call, stalls
from tests.support.blackbox.strict_client import DEADLINE_S, Client
from tests.support.certificates import Authority, Mounted, Pair, serial
from tests.support.patience import until

pytestmark = pytest.mark.interpreted


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def flags(pair: Pair) -> tuple[str, ...]:
    return "--tls-cert-file", pair.cert, "--tls-key-file", pair.key


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def secure(authority: Authority) -> AsyncIterator[Gateway]:
    async with lasting(*flags(authority.issue())) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def bench(authority: Authority, secure: Gateway) -> AsyncIterator[Bench]:
    async with visiting(secure, authority.context()) as bench:
        yield bench


# view of clients -------------------------------------------------------------------------------


async def test_requests_large_bodies_and_streams_pass(bench: Bench) -> None:
    """More bytes than any buffer both ways, and a stream piece by piece on the same connection."""
    may_go_on = asyncio.Event()

    async def script(call: Call) -> None:
        if b'"stream"' not in call.body:
            return await call.send(wire(200, call.body))
        await call.send(SSE_HEAD + chunked(event("a"), end=False))
        await may_go_on.wait()
        return await call.send(chunked(event("b"), DONE))

    await bench.worker(script=script)
    client = await bench.client()
    large = completion("x" * (4 << 20))
    assert (await client.ask(post(large))).body == large
    await client.send(post(completion(stream=True)))
    await client.head()
    assert await client.event() == event("a")
    may_go_on.set()
    assert await client.event() == event("b")
    assert await client.event() == DONE
    assert await client.piece() == b""
    await client.send(post(completion("1")) + post(completion("2")))
    assert [(await client.answer()).body for _ in range(2)] == [completion("1"), completion("2")]


async def test_a_rejected_body_is_answered(bench: Bench) -> None:
    """Bytes that are still on their way do not take the answer from the client."""
    client = await bench.client()
    answer = await client.ask(request("POST", "/v1/completions", None, (b"Content-Length", b"99999999999")))
    assert answer.status == 413
    await client.ends()


async def test_a_client_that_reads_nothing_pauses_its_worker_only(bench: Bench) -> None:
    """Memory that the gateway keeps for a handshake is bounded."""
    num_sent = 0

    async def script(call: Call) -> None:
        nonlocal num_sent
        await call.send(wire(200, b"", (b"Content-Length", b"%d" % (256 << 20)), length=False))
        while num_sent < 256 and not call.gone.is_set():
            await call.send(b"x" * (1 << 20))
            num_sent += 1

    worker = await bench.worker(script=script)
    slow = await bench.client(small_buffer=True)
    await slow.send(post(completion()))
    before = bench.gateway.rss_bytes()
    call = await worker.called()
    await stalls(worker, lambda: num_sent)
    assert num_sent < 64
    assert bench.gateway.rss_bytes() - before < 32 << 20
    await slow.close()
    async with asyncio.timeout(DEADLINE_S):
        await call.gone.wait()


async def test_a_client_that_disconnects_stops_its_worker(bench: Bench) -> None:
    async def script(call: Call) -> None:
        await call.send(SSE_HEAD + chunked(event("a"), end=False))
        await call.gone.wait()

    worker = await bench.worker(script=script)
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    await client.head()
    client.reset()
    async with asyncio.timeout(DEADLINE_S):
        await (await worker.called()).gone.wait()


async def test_a_stop_lets_requests_finish(authority: Authority) -> None:
    may_end = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD + chunked(event("a"), end=False))
        await may_end.wait()
        await call.send(chunked(event("b"), DONE))

    async with running(*flags(authority.issue()), tls=authority.context()) as bench:
        await bench.worker(script=script)
        busy, idle = await bench.client(), await bench.client()
        assert (await idle.ask(request("GET", "/health"))).status == 200
        await busy.send(post(completion(stream=True)))
        await busy.head()
        bench.gateway.process.terminate()
        await idle.ends()
        may_end.set()
        assert await busy.event() == event("a")
        assert await busy.event() == event("b")
        assert await bench.gateway.exited() == 0


# clients without TLS ---------------------------------------------------------------------------


Say = Callable[[bytes], Awaitable[bytes]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hasty(authority: Authority) -> AsyncIterator[Gateway]:
    async with lasting(*flags(authority.issue()), "--head-timeout-s", "2") as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def plain(authority: Authority, hasty: Gateway) -> AsyncIterator[Say]:
    """Connect, send these bytes, and return all bytes until the gateway closed."""
    opened: list[asyncio.StreamWriter] = []
    async with visiting(hasty, authority.context()) as bench:

        async def say(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.port)
            opened.append(writer)
            writer.write(data)
            async with asyncio.timeout(DEADLINE_S):
                return await reader.read()

        yield say
        for writer in opened:
            writer.close()
            await writer.wait_closed()
        assert (await bench.ask(request("GET", "/health"))).status == 200


async def test_plain_http_to_the_tls_port_is_closed(plain: Say) -> None:
    """At most an alert is sent: nothing that could pass for an answer."""
    received = await plain(request("GET", "/health"))
    assert len(received) < 16
    assert b"HTTP" not in received


def hello(authority: Authority) -> bytes:
    """First flight of a client."""
    out = ssl.MemoryBIO()
    client = authority.context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


async def test_plain_http_to_the_tls_port_is_logged(plain: Say, hasty: Gateway) -> None:
    await plain(request("GET", "/health"))
    await hasty.logged("WARNING kvgate.*: plain HTTP on the TLS port from 127.0.0.1; connection closed")


async def test_an_unfinished_handshake_times_out(authority: Authority, plain: Say) -> None:
    """The last client has received the gateway's certificate, and sends nothing more."""
    first = hello(authority)
    reported = await asyncio.gather(plain(b""), plain(first[: len(first) // 2]), plain(first))
    assert reported[:2] == [b"", b""] and len(reported[2]) > 500


async def test_slow_handshakes_delay_no_other_client(bench: Bench) -> None:
    await bench.worker()
    writers = [(await asyncio.open_connection("127.0.0.1", bench.gateway.port))[1] for _ in range(50)]
    for _ in range(5):
        assert (await bench.ask(post(completion()))).status == 200
    for writer in writers:
        writer.close()
        await writer.wait_closed()


# changed certificates --------------------------------------------------------------------------


async def shown(bench: Bench) -> str:
    client = await bench.client()
    certificate = client.certificate()
    await client.close()
    return certificate


async def test_a_certificate_changes_under_load_and_no_request_fails(
    authority: Authority, tmp_path: Path
) -> None:
    """Requests on new connections, on kept ones, and a stream that began before."""
    first = authority.issue()
    mounted = Mounted(tmp_path / "secret", first)
    is_over, may_end = asyncio.Event(), asyncio.Event()
    num_answered = 0

    async def script(call: Call) -> None:
        if b'"stream"' not in call.body:
            return await call.send(wire(200, b"{}"))
        await call.send(SSE_HEAD + chunked(event("a"), end=False))
        await may_end.wait()
        return await call.send(chunked(DONE))

    async def load(bench: Bench, *, is_kept: bool) -> None:
        nonlocal num_answered
        client = await Client.open(bench.gateway.port, tls=bench.tls)
        while not is_over.is_set():
            assert (await client.ask(post(completion()))).status == 200
            num_answered += 1
            if not is_kept:
                await client.close()
                client = await Client.open(bench.gateway.port, tls=bench.tls)
        await client.close()

    async with running(*flags(mounted), tls=authority.context()) as bench:
        await bench.worker(script=script)
        stream = await bench.client()
        await stream.send(post(completion(stream=True)))
        await stream.head()
        async with asyncio.TaskGroup() as group:
            for i in range(6):
                group.create_task(load(bench, is_kept=i < 2))
            for pair in (authority.issue(), authority.issue()):
                mounted.swap(pair)
                await until(lambda p=pair: _shows(bench, p), "the new certificate")  # type: ignore[misc]
            is_over.set()
        may_end.set()
        assert await stream.event() == event("a")
        assert await stream.event() == DONE
        assert num_answered > 20
        log = bench.gateway.log
        assert len([line for line in log if "the certificate for clients reloaded" in line]) == 2


async def _shows(bench: Bench, pair: Pair) -> bool:
    return await shown(bench) == serial(pair.cert)


async def test_a_broken_certificate_keeps_the_old_one(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue(), authority.issue()
    before = serial(pair.cert)
    async with running(*flags(pair), tls=authority.context()) as bench:
        Path(pair.key).write_bytes(Path(other.key).read_bytes())
        await bench.gateway.expect_fault(
            rf"ERROR.*reload rejected, keeping the current one: tls_key_file: {pair.key} is not the key"
        )
        assert await shown(bench) == before
        Path(pair.cert).write_bytes(Path(other.cert).read_bytes())
        await until(lambda: _shows(bench, other), "the pair is whole again")


# the start -------------------------------------------------------------------------------------


async def test_unusable_files_are_rejected(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue(), authority.issue()
    reported = await refusal("--tls-cert-file", str(tmp_path / "none.pem"))
    assert f"tls_cert_file: {tmp_path / 'none.pem'} cannot be read" in reported
    reported = await refusal("--tls-cert-file", pair.cert, "--tls-key-file", other.key)
    assert f"tls_key_file: {other.key} is not the key of {pair.cert}" in reported
