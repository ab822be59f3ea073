"""Headers that cross the gateway, in both directions."""

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import Header, completion, post, request, wire
from tests.support.blackbox.scripted_worker import Call, says

HOP_BY_HOP: list[Header] = [
    (b"Keep-Alive", b"timeout=5"),
    (b"Proxy-Authenticate", b"Basic"),
    (b"Proxy-Authorization", b"Basic abc"),
    (b"Proxy-Connection", b"keep-alive"),
    (b"TE", b"trailers"),
    (b"Trailer", b"X-Sum"),
    (b"Upgrade", b"h2c"),
]


async def test_a_worker_gets_end_to_end_headers(bench: Bench) -> None:
    worker = await bench.worker()
    sent: list[Header] = [
        *HOP_BY_HOP,
        (b"Connection", b"keep-alive, X-Mine,  x-also-mine"),
        (b"X-Mine", b"1"),
        (b"X-Also-Mine", b"1"),
        (b"X-Data-Parallel-Rank", b"3"),
        (b"X-KVGate-Worker", b"evil"),
        (b"x-kvgate-anything", b"evil"),
        (b"Authorization", b"Bearer sk-1"),
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (b"tracestate", b"a=1"),
        (b"Accept-Encoding", b"gzip"),
        (b"Cookie", b"a=1; b=2"),
        (b"X-Twice", b"1"),
        (b"X-Twice", b"2"),
        (b"X-Latin", b"caf\xe9"),
        (b"X-Empty", b""),
        (b"Content-Type", b"application/json"),
    ]
    body = completion()
    assert (await bench.ask(post(body, *sent))).status == 200
    call = worker.calls[0]
    got = {name.lower() for name, _ in call.headers}
    assert not got & {name.lower() for name, _ in HOP_BY_HOP}
    assert not got & {b"x-mine", b"x-also-mine", b"x-data-parallel-rank", b"expect", b"connection"}
    assert not [name for name in got if name.startswith(b"x-kvgate")]
    assert call.value(b"authorization") == b"Bearer sk-1"
    assert call.value(b"traceparent") == b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert call.value(b"tracestate") == b"a=1"
    assert call.values(b"accept-encoding") == []
    assert call.value(b"cookie") == b"a=1; b=2"
    assert call.values(b"x-twice") == [b"1", b"2"]
    assert call.value(b"x-latin") == b"caf\xe9"
    assert call.value(b"host") == worker.id.encode()
    assert call.value(b"via") == b"1.1 kvgate"
    assert call.value(b"content-length") == b"%d" % len(body)


async def test_trailers_are_not_forwarded(bench: Bench) -> None:
    worker = await bench.worker()
    body = completion()
    framed = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer evil\r\nX-Trailer: 1\r\n\r\n" % (len(body), body)
    answer = await bench.ask(
        post(framed, (b"Transfer-Encoding", b"chunked"), (b"Authorization", b"Bearer sk-1"))
    )
    assert answer.status == 200
    assert worker.calls[0].value(b"authorization") == b"Bearer sk-1"
    assert worker.calls[0].values(b"x-trailer") == []
    assert worker.calls[0].body == body


async def test_a_client_gets_end_to_end_headers(bench: Bench) -> None:
    reply = wire(
        200,
        b"{}",
        *HOP_BY_HOP[:-1],
        (b"Connection", b"keep-alive, X-Mine"),
        (b"X-Mine", b"1"),
        (b"X-KVGate-Worker", b"forged"),
        (b"x-kvgate-secret", b"forged"),
        (b"Content-Type", b"application/json"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Server", b"uvicorn"),
        (b"X-Kept", b"caf\xe9"),
    )
    await bench.worker(script=says(reply))
    answer = await bench.ask(post(completion()))
    got = {name for name, _ in answer.headers}
    assert not got & {name.lower() for name, _ in HOP_BY_HOP}
    assert not got & {b"connection", b"x-mine"}
    assert not [name for name in got if name.startswith(b"x-kvgate")]
    assert answer.values(b"set-cookie") == [b"a=1", b"b=2"]
    assert (answer.value(b"server"), answer.value(b"x-kept")) == (b"uvicorn", b"caf\xe9")
    assert answer.value(b"content-length") == b"2"


BIG = b"x" * (1 << 16)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("GET", "/v1/models", None, (b"X-Request-Id", b"mine-7")), 200),
        (request("GET", "/health", None, (b"X-Request-Id", b"mine-7")), 200),
        (request("GET", "/nowhere", None, (b"X-Request-Id", b"mine-7")), 404),
        (request("PUT", "/v1/models", b"", (b"X-Request-Id", b"mine-7")), 405),
        (post(b"{", (b"X-Request-Id", b"mine-7")), 400),
        (post(completion(model="none"), (b"X-Request-Id", b"mine-7")), 404),
        (post(completion(), (b"X-Request-Id", b"mine-7"), (b"Expect", b"magic")), 417),
        (post(b"", (b"X-Request-Id", b"mine-7"), (b"Content-Length", b"99999999")), 413),
        (request("GET", "/health", None, (b"X-Request-Id", b"mine-7"), (b"X-Big", BIG)), 431),
        (post(b"zz\r\n", (b"X-Request-Id", b"mine-7"), (b"Transfer-Encoding", b"chunked")), 400),
    ],
    ids=["models", "health", "404", "405", "400", "unknown model", "417", "413", "431", "bad chunk"],
)
async def test_errors_and_own_routes_carry_the_request_id(bench: Bench, data: bytes, status: int) -> None:
    await bench.worker()
    answer = await bench.ask(data)
    assert (answer.status, answer.value(b"x-request-id")) == (status, b"mine-7")


async def test_a_request_id_is_generated_for_an_unreadable_head(bench: Bench) -> None:
    answer = await bench.ask(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    assert answer.status == 400
    assert answer.value(b"x-request-id")


async def test_decisions_are_shown_only_where_enabled(bench: Bench) -> None:
    forged = says(wire(200, b"{}", (b"X-KVGate-Worker", b"forged"), (b"X-KVGate-Secret", b"forged")))
    ids = list(range(64))
    async with running("--expose-headers") as open_bench:
        worker = await open_bench.worker(script=forged)
        first = await open_bench.ask(post(completion(ids)))
        second = await open_bench.ask(post(completion(ids)))
        assert first.value(b"x-kvgate-worker") == worker.id.encode()
        assert first.value(b"x-kvgate-overlap-tokens") == b"0"
        assert second.value(b"x-kvgate-overlap-tokens") == b"48"  # the last token is always computed
        assert first.value(b"x-kvgate-decision") != second.value(b"x-kvgate-decision")
        assert not first.values(b"x-kvgate-secret")

    async def script(call: Call) -> None:
        await forged(call)

    await bench.worker(script=script)
    hidden = await bench.ask(post(completion(ids)))
    assert not [name for name, _ in hidden.headers if name.startswith(b"x-kvgate")]
