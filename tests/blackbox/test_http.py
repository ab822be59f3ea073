"""HTTP/1.1 by RFC 9110 and 9112: framing, order, persistence, back-pressure."""

import asyncio
import gzip
import hashlib

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import (
    CHAT,
    DONE,
    SSE_HEAD,
    chunked,
    completion,
    event,
    post,
    request,
    wire,
)
from tests.support.blackbox.scripted_worker import Call, says, stalls
from tests.support.blackbox.strict_client import Cut
from tests.support.patience import patience

CHUNKED = (b"Transfer-Encoding", b"chunked")
EXPECT = (b"Expect", b"100-continue")


async def echo(call: Call) -> None:
    await call.send(wire(200, call.body))


# connections -------------------------------------------------------------------------------------


async def test_connections_are_kept_on_both_sides(bench: Bench) -> None:
    worker = await bench.worker(script=echo)
    client = await bench.client()
    for i in range(5):
        answer = await client.ask(post(completion(str(i))))
        assert (answer.body, answer.values(b"connection")) == (completion(str(i)), [])
    assert len({call.link for call in worker.calls}) == 1


@pytest.mark.parametrize("target", ["/health", None])
async def test_connection_close_is_honoured(bench: Bench, target: str | None) -> None:
    await bench.worker()
    client = await bench.client()
    close = (b"Connection", b"close")
    data = request("GET", target, None, close) if target else post(completion(), close)
    answer = await client.ask(data)
    assert (answer.status, answer.value(b"connection")) == (200, b"close")
    await client.ends()


async def test_requests_behind_a_close_are_ignored(bench: Bench) -> None:
    worker = await bench.worker()
    client = await bench.client()
    await client.send(post(completion("1"), (b"Connection", b"close")) + post(completion("2")))
    assert (await client.answer()).status == 200
    await client.ends()
    assert [call.body for call in worker.calls] == [completion("1")]


async def test_an_idle_client_is_closed() -> None:
    async with running("--keep-alive-s", "0.2") as bench:
        client = await bench.client()
        assert (await client.ask(request("GET", "/health"))).status == 200
        await client.ends()


async def test_a_busy_client_is_not_idle() -> None:
    """A request that waits behind another one is covered: pipelining must not start the clock."""
    async with running("--keep-alive-s", "0.3") as bench:
        longer_than_idle = asyncio.Event()

        async def script(call: Call) -> None:
            if call.body == completion("slow"):
                await longer_than_idle.wait()
            await echo(call)

        worker = await bench.worker(script=script)
        client, idle = await bench.client(), await bench.client()
        await client.send(post(completion("1")) + request("GET", "/health") + post(completion("slow")))
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        await worker.called(2)
        for _ in range(2):  # each lives 0.3 s and was opened after the slow request had begun
            assert (await idle.ask(request("GET", "/health"))).status == 200
            await idle.ends()
            idle = await bench.client()
        longer_than_idle.set()
        assert (await client.answer()).body == completion("slow")


async def test_pipelined_requests_are_answered_in_order(bench: Bench) -> None:
    first_may_answer = asyncio.Event()

    async def script(call: Call) -> None:
        if call.body == completion("0"):
            await first_may_answer.wait()
        await echo(call)

    worker = await bench.worker(script=script)
    client = await bench.client()
    data = [
        post(completion("0")),
        request("GET", "/health"),
        post(completion("1")),
        post(b"{"),
        request("HEAD", "/v1/models"),
        post(chunked(completion("2")), CHUNKED),
        request("GET", "/nowhere"),
        post(completion("3")),
    ]
    await client.send(b"".join(data))
    await worker.called()
    first_may_answer.set()
    answers = [await client.answer(is_head=i == 4) for i in range(8)]
    assert [a.status for a in answers] == [200, 200, 200, 400, 200, 200, 404, 200]
    assert [answers[i].body for i in (0, 2, 5, 7)] == [completion(str(i)) for i in range(4)]


async def test_many_pipelined_requests_are_answered(bench: Bench) -> None:
    """More than the queue takes: reading pauses and resumes."""
    worker = await bench.worker(script=echo)
    client = await bench.client()
    bodies = [completion(str(i)) for i in range(200)]
    sending = asyncio.get_running_loop().create_task(client.send(b"".join(map(post, bodies))))
    assert [(await client.answer()).body for _ in bodies] == bodies
    await sending
    assert [call.body for call in worker.calls] == bodies


# requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        post(completion()),
        post(chunked(completion()[:7], completion()[7:8], completion()[8:]), CHUNKED),
        post(b"5;ext=1\r\n" + completion()[:5] + b"\r\n" + chunked(completion()[5:]), CHUNKED),
    ],
    ids=["length", "chunked", "chunk extension"],
)
async def test_a_request_may_arrive_byte_by_byte(bench: Bench, data: bytes) -> None:
    worker = await bench.worker(script=echo)
    client = await bench.client()
    for i in range(len(data)):
        await client.send(data[i : i + 1])
        await asyncio.sleep(0)
    assert (await client.answer()).body == completion()
    call = worker.calls[0]
    assert call.value(b"content-length") == b"%d" % len(completion())
    assert call.values(b"transfer-encoding") == []


async def test_a_request_may_arrive_in_any_two_parts(bench: Bench) -> None:
    await bench.worker(script=echo)
    client = await bench.client()
    data = post(chunked(completion()[:9], completion()[9:]), CHUNKED)
    for cut in range(1, len(data), 3):
        await client.send(data[:cut])
        await asyncio.sleep(0)
        await client.send(data[cut:])
        assert (await client.answer()).body == completion()


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_expect_100_is_answered(bench: Bench, framing: str) -> None:
    await bench.worker(script=echo)
    client = await bench.client()
    body = completion()
    framed = body if framing == "length" else chunked(body)
    data = post(framed, EXPECT, *([CHUNKED] if framing == "chunked" else []))
    head = data[: -len(framed)]
    for _ in range(2):
        await client.send(head)
        assert await client._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(framed)
        answer = await client.answer()
        assert (answer.body, answer.num_interim) == (body, 0)


async def test_expect_behind_another_request_is_answered(bench: Bench) -> None:
    """A queued request gets its 100 in order."""
    await bench.worker(script=echo)
    client = await bench.client()
    body = completion("2")
    await client.send(post(completion("1")) + post(body, EXPECT)[: -len(body)])
    assert (await client.answer()).body == completion("1")
    assert await client._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.answer()).body == body


async def test_expect_of_an_http10_client_is_ignored(bench: Bench) -> None:
    await bench.worker(script=echo)
    answer = await bench.ask(post(completion(), EXPECT, version="1.0"))
    assert (answer.body, answer.num_interim) == (completion(), 0)


async def test_http10_closes(bench: Bench) -> None:
    await bench.worker()
    client = await bench.client()
    answer = await client.ask(post(completion(), version="1.0"))
    assert (answer.status, answer.value(b"connection")) == (200, b"close")
    await client.ends()


async def test_http10_keep_alive(bench: Bench) -> None:
    await bench.worker(script=echo)
    client = await bench.client()
    for i in range(2):
        data = post(completion(str(i)), (b"Connection", b"keep-alive"), version="1.0")
        answer = await client.ask(data)
        assert (answer.body, answer.value(b"connection")) == (completion(str(i)), b"keep-alive")


@pytest.mark.parametrize("headers", [[], [(b"Connection", b"keep-alive")]], ids=["close", "keep-alive"])
async def test_http10_gets_a_chunked_answer_unchunked(
    bench: Bench, headers: list[tuple[bytes, bytes]]
) -> None:
    await bench.worker(script=says(SSE_HEAD + chunked(event("a"), event("b"), DONE)))
    client = await bench.client()
    answer = await client.ask(post(completion(stream=True), *headers, version="1.0"))
    assert answer.values(b"transfer-encoding") == []
    assert answer.value(b"connection") == b"close"
    assert answer.body == event("a") + event("b") + DONE


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/m"])
async def test_head_is_get_without_the_body(bench: Bench, path: str) -> None:
    await bench.worker()
    client = await bench.client()
    full = await client.ask(request("GET", path))
    head = await client.ask(request("HEAD", path))
    assert (full.status, head.status, head.body) == (200, 200, b"")
    assert head.value(b"content-length") == full.value(b"content-length") == b"%d" % len(full.body)
    missing = await client.ask(request("HEAD", "/nowhere"))
    assert missing.status == 404
    assert (await client.ask(request("GET", path))).status == 200


UPGRADE = (b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c"), (b"HTTP2-Settings", b"AAMA")


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_upgrade_to_http2_is_ignored(bench: Bench, framing: str) -> None:
    """Upgrade as `curl --http2` sends it to any http:// URL."""
    worker = await bench.worker(script=echo)
    client = await bench.client()
    for i in range(2):
        body = completion(str(i))
        data = post(body, *UPGRADE) if framing == "length" else post(chunked(body), CHUNKED, *UPGRADE)
        await client.send(data[:50])
        await asyncio.sleep(0)
        await client.send(data[50:] + request("GET", "/health", None, *UPGRADE))
        assert (await client.answer()).body == body
        assert (await client.answer()).json == {"status": "alive"}
    assert worker.calls[0].values(b"http2-settings") == worker.calls[0].values(b"upgrade") == []


async def test_an_upgrade_to_http2_with_expect_is_ignored(bench: Bench) -> None:
    await bench.worker(script=echo)
    client = await bench.client()
    body = completion("x" * 100_000)
    await client.send(post(body, *UPGRADE, EXPECT)[: -len(body)])
    assert await client._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.answer()).body == body


@pytest.mark.parametrize(
    "data",
    [
        request("GET", CHAT, None, (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))
        + b"\x81\x05hello",
        post(completion(), (b"Connection", b"upgrade"), (b"Upgrade", b"WebSocket")),
        request("CONNECT", "example.org:443") + b"\x16\x03\x01",
    ],
    ids=["websocket", "websocket with a body", "connect"],
)
async def test_websockets_and_tunnels_on_other_routes_are_rejected(bench: Bench, data: bytes) -> None:
    worker = await bench.worker()
    client = await bench.client()
    answer = await client.ask(data)
    assert (answer.status, answer.value(b"connection")) == (501, b"close")
    assert answer.error["code"] == "not_supported"
    await client.ends()
    assert not worker.calls


# responses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_all_framings_of_an_answer_pass(bench: Bench, stream: bool) -> None:
    """Length, chunked, until close; whole and byte by byte."""
    body = event("a") + event("b") + DONE if stream else b'{"ok":true}'
    kind = (b"Content-Type", b"text/event-stream" if stream else b"application/json")
    framings = [
        wire(200, body, kind),
        wire(200, chunked(body[:5], body[5:]), kind, CHUNKED, length=False),
        wire(200, body, kind, (b"Connection", b"close")),
        wire(200, body, kind, length=False),
        b"HTTP/1.0 200 OK\r\nContent-Type: " + kind[1] + b"\r\n\r\n" + body,
    ]

    async def script(call: Call) -> None:
        n = len(worker.calls) - 1
        data = framings[n % 5]
        step = len(data) if n < 5 else 1
        for i in range(0, len(data), step):
            await call.send(data[i : i + step])
            await asyncio.sleep(0)
        if n % 5 >= 2:
            call.close()

    worker = await bench.worker(script=script)
    client = await bench.client()
    for _ in range(2 * len(framings)):
        answer = await client.ask(post(completion(stream=stream)))
        assert (answer.status, answer.body) == (200, body)


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_pass(bench: Bench, status: int) -> None:
    worker = await bench.worker(script=says(wire(status, length=False)))
    client = await bench.client()
    for _ in range(2):
        answer = await client.ask(post(completion()))
        assert (answer.status, answer.body) == (status, b"")
        assert answer.values(b"content-length") == answer.values(b"transfer-encoding") == []
    assert len({call.link for call in worker.calls}) == 1


@pytest.mark.parametrize("status", [201, 404, 418, 429, 500, 503, 599])
async def test_a_status_of_the_worker_passes(bench: Bench, status: int) -> None:
    head = (b"Retry-After", b"7"), (b"Location", b"http://elsewhere/")
    worker = await bench.worker(script=says(wire(status, b"why", *head)))
    answer = await bench.ask(post(completion()))
    assert (answer.status, answer.body, answer.value(b"retry-after")) == (status, b"why", b"7")
    assert answer.values(b"location") == [], "an address of the worker is not for clients"
    assert len(worker.calls) == 1


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_redirect_of_the_worker_is_502(bench: Bench, status: int, stream: bool) -> None:
    target = b"http://10.0.0.9/secret-%d" % status
    worker = await bench.worker(script=says(wire(status, b"moved", (b"Location", target))))
    for _ in range(3):
        answer = await bench.ask(post(completion(stream=stream)))
        assert (answer.status, answer.error["code"]) == (502, "worker_failed")
        assert f"answered {status}, a redirect" in answer.error["message"]
        assert answer.values(b"location") == [] and target not in answer.body
    await bench.gateway.logged(f"answered {status}, a redirect to {target.decode()}")
    assert len(worker.calls) == 3 and await bench.gateway.is_up(worker), "a client may have chosen the path"


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ("/v1/completions/", b"/v1/completions"),
        ("//v1/completions", b"/v1/completions"),
        ("/v1//completions//?a=1", b"/v1/completions?a=1"),
    ],
)
async def test_empty_segments_and_a_last_slash_make_no_other_path(
    bench: Bench, sent: str, got: bytes
) -> None:
    worker = await bench.worker()
    assert (await bench.ask(post(completion(), target=sent))).status == 200
    assert worker.calls[0].target == got
    for path in ("/v1/models/", "//v1/models", "/v1/models/m/", "/health/", "//ready"):
        assert (await bench.ask(request("GET", path))).status == 200
    answer = await bench.ask(request("GET", "/metrics/"))
    assert answer.status == 404 and "admin port" in answer.error["message"]


async def test_interim_answers_of_a_worker_are_dropped_or_passed(bench: Bench) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    worker = await bench.worker(script=says(b"HTTP/1.1 100 Continue\r\n\r\n" + early + wire(200, b"{}")))
    client = await bench.client()
    for _ in range(2):
        answer = await client.ask(post(completion()))
        assert (answer.status, answer.body, answer.values(b"link")) == (200, b"{}", [])
    assert len({call.link for call in worker.calls}) == 1


async def test_compressed_bytes_are_unchanged(bench: Bench) -> None:
    body = gzip.compress(b'{"choices":[]}')
    await bench.worker(script=says(wire(200, body, (b"Content-Encoding", b"gzip"))))
    answer = await bench.ask(post(completion(), (b"Accept-Encoding", b"gzip")))
    assert (answer.body, answer.value(b"content-encoding")) == (body, b"gzip")


async def test_a_compressed_stream_is_not_delayed(bench: Bench) -> None:
    """A compressed stream hides the ends of events, so no byte can wait for one."""
    rest_may_come = asyncio.Event()
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    data = gzip.compress(event("a") + DONE)

    async def script(call: Call) -> None:
        await call.send(head + chunked(data[:12], end=False))
        await rest_may_come.wait()
        await call.send(chunked(data[12:]))

    await bench.worker(script=script)
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    await client.head()
    assert await client.piece() == data[:12]
    rest_may_come.set()
    assert await client.piece() == data[12:]
    assert await client.piece() == b""


async def test_events_pass_as_they_arrive(bench: Bench) -> None:
    """Each event reaches the client before the worker sends the next."""
    seen = [asyncio.Event() for _ in range(4)]

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD)
        for i, has_seen in enumerate(seen):
            await call.send(chunked(event(str(i)), end=False))
            await has_seen.wait()
        await call.send(chunked(DONE))

    await bench.worker(script=script)
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    await client.head()
    for i, has_seen in enumerate(seen):
        assert await client.event() == event(str(i))
        has_seen.set()
    assert await client.event() == DONE
    assert await client.piece() == b""


# size --------------------------------------------------------------------------------------------


async def test_bodies_of_eight_mib_pass_both_ways(bench: Bench) -> None:
    worker = await bench.worker(script=echo)
    client = await bench.client()
    body = completion("0123456789abcdef" * (1 << 19))
    for data in (post(body), post(chunked(*_cut(body, 100_000)), CHUNKED)):
        sending = asyncio.get_running_loop().create_task(client.send(data))
        assert (await client.answer()).body == body
        await sending
    assert all(call.body == body for call in worker.calls)


@pytest.mark.parametrize("is_pipelined", [False, True], ids=["alone", "behind another answer"])
async def test_a_slow_reader_slows_the_worker(bench: Bench, is_pipelined: bool) -> None:
    """Unread data is not taken from the worker: memory stays bounded."""
    block, num_blocks = bytes(range(256)) * 1024, 256  # 64 MiB
    num_sent = 0

    async def script(call: Call) -> None:
        nonlocal num_sent
        if call.body == completion("small"):
            return await call.send(wire(200, block * 8))
        size = (b"Content-Length", b"%d" % (len(block) * num_blocks))
        await call.send(wire(200, b"", size, length=False))
        while num_sent < num_blocks:
            num_sent += 1
            await call.send(block)
        return None

    worker = await bench.worker(script=script)
    client = await bench.client(small_buffer=True)
    before = bench.gateway.rss_bytes()
    await client.send((post(completion("small")) if is_pipelined else b"") + post(completion("big")))
    await worker.called()
    await stalls(worker, lambda: num_sent)
    assert num_sent < num_blocks * 3 // 4
    grown = bench.gateway.rss_bytes() - before
    assert grown < 16 << 20, f"{grown >> 20} MiB"
    if is_pipelined:
        assert (await client.answer()).body == block * 8
        await stalls(worker, lambda: num_sent)
        assert num_sent < num_blocks * 3 // 4
        grown = bench.gateway.rss_bytes() - before
        assert grown < 16 << 20, f"{grown >> 20} MiB"
    await client.head()
    digest, num_bytes = hashlib.sha256(), 0
    while piece := await client.piece():
        digest.update(piece)
        num_bytes += len(piece)
    assert num_bytes == len(block) * num_blocks
    assert digest.digest() == hashlib.sha256(block * num_blocks).digest()


async def test_a_client_that_stops_reading_is_no_fault_of_the_worker() -> None:
    async with running("--idle-timeout-s", "0.5") as bench:

        async def script(call: Call) -> None:
            await call.send(SSE_HEAD)
            while not call.gone.is_set():
                await call.send(chunked(event("x" * 50_000), end=False))

        worker = await bench.worker(script=script)
        client = await bench.client(small_buffer=True)
        await client.send(post(completion(stream=True)))
        await client.head()
        async with asyncio.timeout(patience(20)):
            await (await worker.called()).gone.wait()
        with pytest.raises(Cut):
            while await client.piece():
                pass
        await bench.nothing_in_flight()
        assert await bench.gateway.total("kvgate_client_disconnects_total") == 1
        assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]
