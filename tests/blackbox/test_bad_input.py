"""Mistakes of clients, and the errors they get; no worker sees the requests."""

import json

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import CHAT, COMPLETIONS, Header, chunked, completion, post, request


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("route", "sent", "param"),
    [
        (CHAT, b"", None),
        (CHAT, b"{", None),
        (CHAT, b"[1]", None),
        (CHAT, b'"text"', None),
        (CHAT, b"null", None),
        (CHAT, b'{"model":"m","messages":[],"x":"\xff"}', None),
        (CHAT, b'{"model":"m","messages":[]} {}', None),
        (CHAT, b"[" * 100_000, None),
        (CHAT, b'{"a":' * 50_000, None),
        (CHAT, body(messages=[]), "model"),
        (CHAT, body(model=None, messages=[]), "model"),
        (CHAT, body(model="", messages=[]), "model"),
        (CHAT, body(model=3, messages=[]), "model"),
        (CHAT, body(model=["m"], messages=[]), "model"),
        (CHAT, body(model="m"), "messages"),
        (CHAT, body(model="m", messages="hi"), "messages"),
        (CHAT, body(model="m", messages=["hi"]), "messages[0]"),
        (CHAT, body(model="m", messages=[{"role": "user"}, {"content": "x"}]), "messages[1].role"),
        (CHAT, body(model="m", messages=[], stream="yes"), "stream"),
        (CHAT, body(model="m", messages=[], cache_salt=1), "cache_salt"),
        (COMPLETIONS, body(model="m"), "prompt"),
        (COMPLETIONS, body(model="m", prompt=None), "prompt"),
        (COMPLETIONS, body(model="m", prompt=[]), "prompt"),
        (COMPLETIONS, body(model="m", prompt={"a": 1}), "prompt"),
        (COMPLETIONS, body(model="m", prompt=["a", 1]), "prompt"),
        (COMPLETIONS, body(model="m", prompt=[1, -1]), "prompt"),
        (COMPLETIONS, body(model="m", prompt=[1.5]), "prompt"),
        (COMPLETIONS, body(model="m", prompt=[True]), "prompt"),
        (COMPLETIONS, body(model="m", prompt=[[1], "a"]), "prompt"),
        (COMPLETIONS, body(model="m", prompt=[1 << 40]), "prompt"),
        ("/v1/embeddings", body(input="x"), "model"),
        ("/v1/embeddings", b"x", None),
        ("/tokenize", body(prompt="x"), "model"),
    ],
    ids=str,
)
async def test_unreadable_bodies_are_rejected(
    bench: Bench, route: str, sent: bytes, param: str | None
) -> None:
    worker = await bench.worker()
    client = await bench.client()
    answer = await client.ask(post(sent, target=route))
    assert answer.status == 400
    assert (answer.error["param"], answer.error["type"]) == (param, "invalid_request_error")
    assert param is None or param in answer.error["message"]
    assert (await client.ask(post(completion()))).status == 200  # the connection is still usable
    assert [call.body for call in worker.calls] == [completion()]


async def test_an_unknown_model_is_rejected_with_the_known_ones(bench: Bench) -> None:
    workers = [await bench.worker("m"), await bench.worker("org/name")]
    answer = await bench.ask(post(completion(model="missing")))
    assert answer.status == 404
    assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
    assert all(name in answer.error["message"] for name in ("missing", "m", "org/name"))
    assert not any(worker.calls for worker in workers)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, "/v1/embeddings"])
async def test_a_request_without_any_worker_is_503(bench: Bench, route: str) -> None:
    answer = await bench.ask(post(body(model="m", prompt="x", messages=[]), target=route))
    assert answer.status == 503
    assert answer.error["type"] == "server_error"
    assert int(answer.value(b"retry-after") or 0) >= 1


async def test_a_model_with_all_workers_down_is_503(bench: Bench) -> None:
    worker = await bench.worker("m")
    await bench.worker("other")
    await worker.die()
    for _ in range(2):  # notice it; the answer to its last probe may be read after the first
        await bench.ask(post(completion()))
    answer = await bench.ask(post(completion()))
    assert answer.status == 503
    assert int(answer.value(b"retry-after") or 0) >= 1
    assert (await bench.ask(post(completion(model="other")))).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, {"POST"}),
        ("OPTIONS", CHAT, {"POST"}),
        ("DELETE", "/v1/embeddings", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("PATCH", "/v1/models/m", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("DELETE", "/ready", {"GET", "HEAD"}),
    ],
)
async def test_wrong_methods_are_rejected(bench: Bench, method: str, path: str, allowed: set[str]) -> None:
    worker = await bench.worker()
    answer = await bench.ask(request(method, path, b""))
    assert answer.status == 405
    assert {m.strip() for m in (answer.value(b"allow") or b"").decode().split(",")} == allowed
    assert answer.error["code"] == "method_not_allowed"
    assert not worker.calls


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/V1/completions",
        "/v1/%63ompletions",
        "/v1/../v1/completions",
        "/metrics",
        "/admin/workers",
        "/invocations",
    ],
)
async def test_unknown_routes_are_not_forwarded(bench: Bench, path: str) -> None:
    worker = await bench.worker()
    for method in ("GET", "POST"):
        answer = await bench.ask(request(method, path, completion() if method == "POST" else None))
        assert answer.status == 404
        assert answer.error["code"] == "unknown_route"
    assert not worker.calls


@pytest.mark.parametrize("path", ["/sleep", "/sleep/", "//sleep", "/sleep//"])
async def test_a_refused_route_is_refused_however_its_slashes_are_written(bench: Bench, path: str) -> None:
    worker = await bench.worker()
    answer = await bench.ask(request("POST", path, completion()))
    assert (answer.status, answer.error["code"]) == (403, "route_forbidden")
    assert not worker.calls


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 32,
    "version": b"GET /health HTTP/3.0\r\n\r\n",
    "bare LF": b"GET /health HTTP/1.1\nHost: a\n\n",
    "space before the colon": b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n",
    "folded header": b"GET /health HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nA: b\x00c\r\n\r\n",
    "bare CR in a header": b"GET /health HTTP/1.1\r\nA: b\rc\r\n\r\n",
    "two lengths": post(b"{}", (b"Content-Length", b"2"), (b"Content-Length", b"3")),
    "length and chunked": post(b"0\r\n\r\n", (b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"2")),
    "chunked and length": post(b"0\r\n\r\n", (b"Content-Length", b"2"), (b"Transfer-Encoding", b"chunked")),
    "signed length": post(b"{}", (b"Content-Length", b"+2")),
    "long length": post(b"{}", (b"Content-Length", b"9" * 30)),
    "unknown coding": post(b"{}", (b"Transfer-Encoding", b"gzip")),
    "chunked not last": post(b"{}", (b"Transfer-Encoding", b"chunked, gzip")),
    "chunk size": post(b"zz\r\n{}\r\n0\r\n\r\n", (b"Transfer-Encoding", b"chunked")),
    "chunk end": post(b"2\r\n{}XX0\r\n\r\n", (b"Transfer-Encoding", b"chunked")),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_http_is_answered_and_closed(bench: Bench, data: bytes) -> None:
    worker = await bench.worker()
    client = await bench.client()
    answer = await client.ask(data)
    assert (answer.status, answer.value(b"connection")) == (400, b"close")
    assert answer.error["type"] == "invalid_request_error"
    await client.ends()
    assert not worker.calls


async def test_requests_before_malformed_http_are_answered(bench: Bench) -> None:
    worker = await bench.worker()
    client = await bench.client()
    smuggled = post(completion("smuggled"))
    await client.send(post(completion()) + b"garbage\r\n\r\n" + smuggled)
    assert (await client.answer()).status == 200
    assert (await client.answer()).status == 400
    await client.ends()
    assert [call.body for call in worker.calls] == [completion()]


# sizes -------------------------------------------------------------------------------------------

LIMIT = 16 << 20  # of the shared gateway


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Content-Length", b"%d" % (LIMIT + 1))],
        [(b"Content-Length", b"%d" % (LIMIT + 1)), (b"Expect", b"100-continue")],
        [(b"Expect", b"100-continue"), (b"Content-Length", b"%d" % (LIMIT + 1))],
    ],
    ids=["plain", "expect behind", "expect before"],
)
async def test_a_body_over_the_limit_is_rejected_by_its_length(bench: Bench, headers: list[Header]) -> None:
    await bench.worker()
    client = await bench.client()
    answer = await client.ask(post(b"", *headers))
    assert (answer.status, answer.num_interim) == (413, 0)
    assert str(LIMIT) in answer.error["message"]
    await client.ends()


async def test_a_chunked_body_over_the_limit_is_rejected_as_it_arrives() -> None:
    async with running("--max-body-bytes", "100000") as bench:
        worker = await bench.worker()
        client = await bench.client()
        chunk = chunked(b"x" * 60_000, end=False)
        await client.send(post(chunk, (b"Transfer-Encoding", b"chunked")))
        await client.send(chunk)  # over the limit; the end never comes
        answer = await client.answer()
        assert answer.status == 413
        await client.send(chunk)  # bytes still on their way do no harm
        await client.ends()
        whole = completion("y" * 99_000)
        assert (await bench.ask(post(whole))).status == 200
        assert [call.body for call in worker.calls] == [whole]


async def test_a_body_at_the_limit_passes() -> None:
    async with running("--max-body-bytes", "100000") as bench:
        worker = await bench.worker()
        whole = completion("y" * (100_000 - len(completion(""))))
        assert len(whole) == 100_000
        for framed in (
            post(whole),
            post(chunked(whole[:50_000], whole[50_000:]), (b"Transfer-Encoding", b"chunked")),
        ):
            assert (await bench.ask(framed)).status == 200
        assert [call.body for call in worker.calls] == [whole, whole]


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/health", None, (b"X-Big", b"x" * (64 << 10))),
        request("GET", "/health", None, *[(b"X-%d" % i, b"x" * 100) for i in range(700)]),
        request("GET", "/health", None, *[(b"A", b"")] * 300),
        request("GET", "/health?" + "x" * (64 << 10)),
        b"GET /health HTTP/1.1\r\nX-Endless: " + b"x" * (65 << 10),
        b"GET /" + b"x" * (65 << 10),
    ],
    ids=["one header", "many headers", "many small headers", "target", "endless header", "endless target"],
)
async def test_a_head_over_64_kib_or_256_headers_is_rejected(bench: Bench, data: bytes) -> None:
    client = await bench.client()
    answer = await client.ask(data)
    assert (answer.status, answer.value(b"connection")) == (431, b"close")
    assert answer.error["code"] == "header_too_large"
    await client.ends()


async def test_a_head_just_under_64_kib_passes(bench: Bench) -> None:
    assert (await bench.ask(request("GET", "/health", None, (b"X-Big", b"x" * 65_000)))).status == 200
    assert (await bench.ask(request("GET", "/health", None, *[(b"A", b"")] * 255))).status == 200


async def test_a_query_of_many_fields_is_rejected(bench: Bench) -> None:
    await bench.worker()
    for separator, status in (("&", 400), (";", 200)):
        target = "/v1/completions?" + f"a{separator}" * 20_000
        assert (await bench.ask(post(completion(), target=target))).status == status


async def test_a_head_behind_a_large_body_is_not_charged_for_it(bench: Bench) -> None:
    """The end of a body and the beginning of the next head often arrive in one read."""
    await bench.worker()
    client = await bench.client()
    large = post(completion("x" * 200_000))
    following = request("GET", "/health")
    await client.send(large + following[:10])
    assert (await client.answer()).status == 200
    await client.send(following[10:11])
    await client.send(following[11:])
    assert (await client.answer()).status == 200


async def test_a_stalled_head_or_body_times_out() -> None:
    async with running("--head-timeout-s", "0.2", "--body-timeout-s", "0.3") as bench:
        worker = await bench.worker()
        head, stuck, idle = await bench.client(), await bench.client(), await bench.client()
        await head.send(b"GET /health HT")
        await stuck.send(post(completion())[:-1])
        answer = await head.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        await head.ends()
        assert (await stuck.answer()).status == 408
        await stuck.ends()
        await idle.ends()  # it has sent no request, so it gets no answer
        assert not worker.calls
