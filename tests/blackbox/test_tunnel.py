"""WebSockets through the gateway: the upgrade, bytes both ways, and every end."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post, request, wire
from tests.support.blackbox.scripted_worker import METRICS, Call, Script, hang, says, stalls
from tests.support.blackbox.strict_client import DEADLINE_S, Client
from tests.support.blackbox.tunnels import AGREED, OFFER, REALTIME, agree, all_closed, offer, tunnels
from tests.support.certificates import Authority
from tests.support.patience import until


async def opened(bench: Bench, *, small_buffer: bool = False) -> Client:
    client = await bench.client(small_buffer=small_buffer)
    await client.send(offer())
    await client.switched()
    return client


def echoes(num_bytes: int) -> Script:
    """Accept, and send that many bytes back."""

    async def script(call: Call) -> None:
        await call.send(AGREED)
        for _ in range(num_bytes):
            await call.send(await call.beyond(1))
        await call.gone.wait()

    return script


# real ends -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def real_worker(tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """URL of an engine with a WebSocket that echoes each message, and closes on "bye"."""

    async def realtime(call: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",), max_msg_size=0)
        await socket.prepare(call)
        await socket.send_str(f"{call.path_qs} {call.headers['authorization']}")
        async for message in socket:
            if message.data == "bye":
                await socket.close(code=4001, message=b"as you wish")
            elif message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        return socket

    async def models(call: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async def metrics(call: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def health(call: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/v1/realtime", realtime), web.get("/v1/models", models)])
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def converse(url: str, tls: ssl.SSLContext | None = None) -> None:
    """Send messages of all kinds and sizes with a real client; the worker's farewell arrives."""
    large = b"x" * (4 << 20)
    async with aiohttp.ClientSession(headers={"authorization": "Bearer k"}) as session:
        socket = await session.ws_connect(url, protocols=("realtime",), max_msg_size=0, ssl=tls or True)
        async with asyncio.timeout(DEADLINE_S):
            assert socket.protocol == "realtime"
            assert await socket.receive_str() == "/v1/realtime?model=m&intent=x Bearer k"
            for text in ("", "hello", "é" * 70_000):
                await socket.send_str(text)
                assert await socket.receive_str() == text
            for _ in range(3):
                await socket.send_bytes(large)
                assert await socket.receive_bytes() == large
            await socket.ping(b"p")
            await socket.send_str("bye")
            farewell = await socket.receive()
            assert (farewell.type, socket.close_code) == (aiohttp.WSMsgType.CLOSE, 4001)


async def test_a_conversation_of_real_peers_passes(bench: Bench) -> None:
    async with real_worker() as url:
        await bench.gateway.admin("POST", "/admin/workers", b'{"url":"%b"}' % url.encode())
        await until(lambda: _is_ready(bench.gateway.port), "ready")
        before = await bench.gateway.metrics()
        await converse(f"ws://127.0.0.1:{bench.gateway.port}/v1/realtime?model=m&intent=x")
        await all_closed(bench)
        after = await bench.gateway.metrics()
        for sender in ("client", "worker"):
            name = f'kvgate_websocket_tunnel_bytes_total{{sender="{sender}"}}'
            assert after[name] - before.get(name, 0) > 3 * (4 << 20)
        name = 'kvgate_responses_total{code="101"}'
        assert after[name] - before.get(name, 0) == 1
        await bench.gateway.admin("DELETE", f"/admin/workers/{url}")


async def _is_ready(port: int, tls: ssl.SSLContext | None = None) -> bool:
    client = await Client.open(port, tls=tls)
    answer = await client.ask(request("GET", "/ready?model=m"))
    await client.close()
    return answer.status == 200


async def test_a_conversation_over_tls_on_both_sides_passes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    flags = ("--tls-cert-file", pair.cert, "--tls-key-file", pair.key, "--worker-ca-file", authority.file)
    async with (
        real_worker(authority.issue().context()) as url,
        running("--worker", url, *flags, tls=authority.context()) as bench,
    ):
        port = bench.gateway.port
        await until(lambda: _is_ready(port, bench.tls), "ready")
        await converse(f"wss://127.0.0.1:{port}/v1/realtime?model=m&intent=x", authority.context())
        await all_closed(bench)


# heads -----------------------------------------------------------------------------------------


async def test_heads_of_an_upgrade_cross_filtered(bench: Bench) -> None:
    worker = await bench.worker(script=agree)
    client = await bench.client()
    await client.send(offer(REALTIME + "&a=%20b", (b"X-Request-Id", b"7"), (b"Keep-Alive", b"5")))
    assert await client.switched() == {
        b"connection": b"Upgrade",
        b"upgrade": b"websocket",
        b"sec-websocket-accept": b"A",
        b"x-request-id": b"7",
    }
    call = await worker.called()
    assert (call.method, call.target) == (b"GET", b"/v1/realtime?model=m&a=%20b")
    assert call.value(b"connection") == b"Upgrade"
    assert call.value(b"upgrade") == b"websocket"
    assert call.value(b"sec-websocket-key") == OFFER[2][1]
    assert call.value(b"host") == worker.id.encode()
    assert re.fullmatch(rb"[0-9a-f]{24}", call.value(b"x-request-id") or b""), "the gateway's"
    assert call.values(b"content-length") == call.values(b"keep-alive") == []
    assert call.body == b""


async def test_the_decision_is_shown_where_enabled() -> None:
    async with running("--expose-headers") as bench:
        worker = await bench.worker(script=agree)
        client = await bench.client()
        await client.send(offer())
        headers = await client.switched()
        assert headers[b"x-kvgate-worker"] == worker.id.encode()
        await client.close()
        await all_closed(bench)
        path = f"/admin/decisions/{headers[b'x-kvgate-decision'].decode()}"
        outcome = (await bench.gateway.admin("GET", path)).json["outcome"]
        assert (outcome["result"], outcome["status"]) == ("ended", 101)


@pytest.mark.parametrize("num_early", [1, 5, 300_000])
async def test_bytes_behind_the_heads_pass(bench: Bench, num_early: int) -> None:
    """Both sides begin before they can have seen the other's acceptance; more than the buffer takes waits."""
    may_agree = asyncio.Event()
    early = bytes(range(256)) * (num_early // 256 + 1)

    async def script(call: Call) -> None:
        await may_agree.wait()
        await call.send(AGREED + b"first")
        await call.send(await call.beyond(num_early))
        await call.gone.wait()

    worker = await bench.worker(script=script)
    client = await bench.client()
    sending = asyncio.get_running_loop().create_task(client.send(offer() + early[:num_early]))
    await worker.called()
    may_agree.set()
    await client.switched()
    await sending
    assert await client.exactly(5 + num_early) == b"first" + early[:num_early]


@pytest.mark.parametrize("size", [1, 7])
async def test_heads_may_arrive_in_small_pieces(bench: Bench, size: int) -> None:
    async def script(call: Call) -> None:
        for i in range(0, len(AGREED), size):
            await call.send(AGREED[i : i + size])
            await asyncio.sleep(0)
        await call.send(await call.beyond(3))
        await call.gone.wait()

    await bench.worker(script=script)
    client = await bench.client()
    data = offer() + b"abc"
    for i in range(0, len(data), size):
        await client.send(data[i : i + size])
    await client.switched()
    assert await client.exactly(3) == b"abc"


async def test_requests_before_the_upgrade_are_answered_first(bench: Bench) -> None:
    async def script(call: Call) -> None:
        await (echoes(2) if call.method == b"GET" else says(wire(200, b"{}")))(call)

    await bench.worker(script=script)
    client = await bench.client()
    await client.send(request("GET", "/health") + post(completion()) + offer() + b"ab")
    assert (await client.answer()).json == {"status": "alive"}
    assert (await client.answer()).body == b"{}"
    await client.switched()
    assert await client.exactly(2) == b"ab"


# routing ---------------------------------------------------------------------------------------


async def test_a_websocket_counts_as_load(bench: Bench) -> None:
    first, second = await bench.worker(script=agree), await bench.worker(script=agree)
    clients = [await opened(bench) for _ in range(4)]
    assert (len(first.calls), len(second.calls)) == (2, 2)
    for worker in (first, second):
        endpoint = await bench.gateway.endpoint(worker)
        assert endpoint and endpoint["workers"][0]["in_flight"] == 2
    assert await tunnels(bench) == 4
    for client in clients:
        await client.close()
    await all_closed(bench)


async def test_the_model_is_named_or_the_only_one(bench: Bench) -> None:
    """The only model needs no name."""
    worker = await bench.worker(script=agree)
    for target in ("/v1/realtime", "/v1/realtime?model=", REALTIME):
        client = await bench.client()
        await client.send(offer(target))
        await client.switched()
    answer = await bench.ask(offer("/v1/realtime?model=x"))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    await bench.worker("other")
    answer = await bench.ask(offer("/v1/realtime"))
    assert (answer.status, answer.error["param"]) == (400, "model")
    assert "m, other" in answer.error["message"]
    assert len(worker.calls) == 3


async def test_without_a_worker_the_upgrade_is_503(bench: Bench) -> None:
    assert (await bench.ask(offer())).status == 503


async def test_a_worker_that_fails_before_it_accepts_is_replaced(bench: Bench) -> None:
    bad = await bench.worker(script=says(b"", then_close=True))
    good = await bench.worker(script=echoes(1))
    for i in range(50):  # the worker that is asked first is random
        client = await opened(bench)
        await client.send(b"a")
        assert await client.exactly(1) == b"a"
        await client.close()
        await all_closed(bench)
        assert len(good.calls) == i + 1
        if bad.calls:
            break
    assert bad.calls


@pytest.mark.parametrize("status", [200, 400, 403, 426])
async def test_an_answer_of_a_worker_that_does_not_accept_is_passed_on(bench: Bench, status: int) -> None:
    """The answer to the upgrade is the client's, and the last on this connection."""
    large = b"no" * 200_000
    await bench.worker(script=says(wire(status, large, (b"X-Why", b"because"))))
    client = await bench.client()
    await client.send(offer() + b"too early")
    answer = await client.answer()
    assert (answer.status, answer.body, answer.value(b"x-why")) == (status, large, b"because")
    assert answer.value(b"connection") == b"close"
    await client.ends()
    await all_closed(bench)


async def test_a_client_that_leaves_a_silent_upgrade_ends_it(bench: Bench) -> None:
    worker = await bench.worker(script=hang)
    client = await bench.client()
    await client.send(offer() + b"x")
    call = await worker.called()
    await client.close()
    async with asyncio.timeout(DEADLINE_S):
        await call.gone.wait()
    await all_closed(bench)


# other upgrades --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        offer("/v1/chat/completions"),
        offer("/health"),
        offer("/v1/realtime/other"),
        request("POST", REALTIME, b"{}", *OFFER),
        request("GET", REALTIME, b"{}", *OFFER),
        offer().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request("CONNECT", "127.0.0.1:1"),
    ],
)
async def test_other_websockets_and_tunnels_are_rejected(bench: Bench, data: bytes) -> None:
    worker = await bench.worker()
    client = await bench.client()
    await client.send(data + b"\x81\x00")
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (501, "not_supported")
    await client.ends()
    assert not worker.calls


@pytest.mark.parametrize("headers", [(), OFFER[1:], OFFER[:1]])
async def test_the_route_without_an_upgrade_is_rejected(
    bench: Bench, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    await bench.worker()
    client = await bench.client()
    answer = await client.ask(request("GET", REALTIME, None, *headers))
    assert (answer.status, answer.value(b"upgrade")) == (426, b"websocket")
    assert (await client.ask(request("POST", REALTIME, b"{}"))).status == 405
    assert (await client.ask(request("GET", "/health"))).status == 200


async def test_a_head_that_is_too_large_is_rejected(bench: Bench) -> None:
    answer = await bench.ask(offer(REALTIME, (b"X", b"x" * 70_000)))
    assert answer.status == 431


# ends ------------------------------------------------------------------------------------------


async def test_a_client_that_closes_ends_the_tunnel(bench: Bench) -> None:
    """Data sent last arrives."""
    worker = await bench.worker(script=agree)
    client = await opened(bench)
    await client.send(b"last words")
    await client.close()
    call = await worker.called()
    assert await call.beyond(10) == b"last words"
    async with asyncio.timeout(DEADLINE_S):
        await call.gone.wait()
    await all_closed(bench)


async def test_a_client_that_resets_ends_the_tunnel(bench: Bench) -> None:
    worker = await bench.worker(script=agree)
    client = await opened(bench)
    client.reset()
    async with asyncio.timeout(DEADLINE_S):
        await (await worker.called()).gone.wait()
    await all_closed(bench)


async def test_a_worker_that_closes_ends_the_tunnel(bench: Bench) -> None:
    large = b"x" * 500_000
    await bench.worker(script=says(AGREED + large, then_close=True))
    client = await opened(bench)
    assert await client.exactly(len(large)) == large
    await client.ends()
    await all_closed(bench)


async def test_a_worker_that_resets_ends_the_tunnel(bench: Bench) -> None:
    async def script(call: Call) -> None:
        await call.send(AGREED)
        await call.beyond(1)
        call.reset()

    worker = await bench.worker(script=script)
    client = await bench.client()
    await client.send(offer(REALTIME, (b"X-Request-Id", b"torn-off")) + b"x")
    await client.switched()
    await client.is_cut()
    await bench.gateway.logged(
        rf"WARNING.*worker {worker.id}: WebSocket aborted \(the worker died.*request torn-off"
    )
    await all_closed(bench)
    name = f'kvgate_worker_failed_requests_total{{worker="{worker.id}"}}'
    assert (await bench.gateway.metrics())[name] == 1


async def test_silence_ends_a_tunnel() -> None:
    async with running("--idle-timeout-s", "1") as bench:
        await bench.worker(script=agree)
        client = await opened(bench)
        await client.ends()
        await bench.gateway.logged(r"WARNING.*WebSocket aborted \(idle for 1 s")
        await all_closed(bench)
        assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0


async def test_a_client_that_goes_on_sending_behind_the_end_is_cut(bench: Bench) -> None:
    """The client has 75 s to read what is written, but its own bytes are dropped up to a limit only."""
    await bench.worker(script=says(AGREED, then_close=True))
    client = await opened(bench)
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(3 * DEADLINE_S):
            while True:
                await client.send(BLOCK)
    await all_closed(bench)


async def test_a_stop_is_not_delayed_by_the_client_of_an_ended_tunnel() -> None:
    async with running("--drain-timeout-s", "600") as bench:
        await bench.worker(script=says(AGREED, then_close=True))
        client = await opened(bench)
        await client.ends()  # and leaves its own side open
        assert await bench.gateway.stop() == 0


async def test_a_stop_waits_for_a_tunnel_then_cuts_and_logs_it() -> None:
    async with running("--drain-timeout-s", "1") as bench:
        worker = await bench.worker(script=agree)
        client = await bench.client()
        await client.send(offer(REALTIME, (b"X-Request-Id", b"the-socket")))
        await client.switched()
        bench.gateway.process.terminate()
        await bench.gateway.logged("WARNING.*request the-socket aborted: the gateway stopped")
        await client.is_cut()
        assert await bench.gateway.exited() == 0
        async with asyncio.timeout(DEADLINE_S):
            await (await worker.called()).gone.wait()


async def test_a_stop_ends_with_the_last_tunnel() -> None:
    async with running("--drain-timeout-s", "600") as bench:
        await bench.worker(script=echoes(1))
        client = await opened(bench)
        bench.gateway.process.terminate()
        await until(lambda: _refuses(bench.gateway.port), "no new clients")
        await client.send(b"a")
        assert await client.exactly(1) == b"a"
        await client.close()
        assert await bench.gateway.exited() == 0
        assert not any("cut" in line for line in bench.gateway.log)


async def _refuses(port: int) -> bool:
    try:
        await (await Client.open(port)).close()
    except OSError:
        return True
    return False


# back-pressure ---------------------------------------------------------------------------------

BLOCK, NUM_BLOCKS = b"x" * (1 << 20), 64


async def test_a_client_that_reads_nothing_pauses_the_worker(bench: Bench) -> None:
    num_sent = 0

    async def script(call: Call) -> None:
        nonlocal num_sent
        await call.send(AGREED)
        while num_sent < NUM_BLOCKS:
            num_sent += 1
            await call.send(BLOCK)
        await call.gone.wait()

    worker = await bench.worker(script=script)
    client = await opened(bench, small_buffer=True)
    before = bench.gateway.rss_bytes()
    await stalls(worker, lambda: num_sent)
    assert num_sent < NUM_BLOCKS * 3 // 4
    assert bench.gateway.rss_bytes() - before < 16 << 20
    for _ in range(NUM_BLOCKS):
        assert await client.exactly(len(BLOCK)) == BLOCK


async def test_a_worker_that_reads_nothing_pauses_the_client(bench: Bench) -> None:
    may_read = asyncio.Event()

    async def script(call: Call) -> None:
        call.hold(True)
        await call.send(AGREED)
        await may_read.wait()
        call.hold(False)
        for _ in range(NUM_BLOCKS):
            assert await call.beyond(len(BLOCK)) == BLOCK
        await call.send(b"!")
        await call.gone.wait()

    await bench.worker(script=script)
    client = await opened(bench)
    before, num_sent = bench.gateway.rss_bytes(), 0

    async def send() -> None:
        nonlocal num_sent
        while num_sent < NUM_BLOCKS:
            num_sent += 1
            await client.send(BLOCK)

    sending = asyncio.get_running_loop().create_task(send())
    last = same = 0

    def is_held() -> bool:
        nonlocal last, same
        same = same + 1 if num_sent == last and num_sent else 0
        last = num_sent
        return same >= 40

    await until(is_held, "the client is held up")
    assert num_sent < NUM_BLOCKS * 3 // 4
    assert bench.gateway.rss_bytes() - before < 16 << 20
    may_read.set()
    await sending
    assert await client.exactly(1) == b"!"


# HTTP/2 ----------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("cut", [3, 10, 18, 24, len(PREFACE)])
async def test_a_client_that_begins_in_http_2_is_answered_in_http_2(bench: Bench, cut: int) -> None:
    client = await bench.client()
    await client.send(PREFACE[:cut])
    await client.send(PREFACE[cut:] + b"\0" * 100)
    settings, goaway = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), bytes((7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13))
    received = await client.exactly(9 + 17)
    assert received[:9] == settings
    assert received[12:] == goaway
    assert (
        await client.exactly(int.from_bytes(received[9:12], "big") - 8)
        == b"this gateway speaks HTTP/1.1 only"
    )
    await client.ends()


async def test_curl_understands_the_http_2_answer(bench: Bench) -> None:
    """Curl logs a connection that the server gave up, not a protocol error."""
    url = f"http://127.0.0.1:{bench.gateway.port}/health"
    try:
        process = await asyncio.create_subprocess_exec(
            *("curl", "-sv", "--http2-prior-knowledge", url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except FileNotFoundError:
        return
    async with asyncio.timeout(DEADLINE_S):
        received, _ = await process.communicate()
    assert b"GOAWAY, error=13" in received or process.returncode == 1, received  # 1: a curl without HTTP/2
