"""Memory for bodies is bounded and becomes free again; a worker reads each body as the gateway did."""

import asyncio
import gzip
import json
import random
import zlib
from typing import Any

import pytest

from tests.support.blackbox.bench import Bench, lasting, running, visiting
from tests.support.blackbox.http1_bytes import COMPLETIONS, Header, completion, post, request
from tests.support.blackbox.scripted_worker import Call
from tests.support.patience import until

KB = 1 << 10


async def test_bodies_beyond_the_budget_are_rejected_until_there_is_room() -> None:
    release = asyncio.Event()

    async def script(call: Call) -> None:
        await release.wait()
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    flags = ("--max-body-bytes", str(60 * KB), "--body-memory-bytes", str(100 * KB))
    async with lasting("--probe-interval-s", "0.2", *flags) as gateway, visiting(gateway) as bench:
        worker = await bench.worker(script=script)
        body = completion("x" * 40 * KB)
        clients = [await bench.client() for _ in range(2)]
        for client in clients:
            await client.send(post(body))
        await worker.called(2)
        assert await gateway.total("kvgate_buffered_body_bytes") == 2 * len(body)

        refused = await bench.ask(post(body))
        assert (refused.status, refused.error["code"]) == (503, "no_room_for_body")
        assert (refused.value(b"retry-after"), refused.value(b"x-should-retry")) == (b"1", b"true")
        assert (await bench.ask(request("GET", "/v1/models"))).status == 200
        assert await gateway.total("kvgate_buffered_body_rejections_total") == 1
        chunked = (b"Transfer-Encoding", b"chunked")
        sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        assert (await bench.ask(request("POST", COMPLETIONS, sent, chunked))).status == 503

        release.set()
        for client in clients:
            assert (await client.answer()).status == 200
        assert (await bench.ask(post(body))).status == 200

        async def is_empty() -> bool:
            return await gateway.total("kvgate_buffered_body_bytes") == 0

        await until(is_empty, "no body is held")


CODING, TYPE = b"Content-Encoding", b"Content-Type"
JSON = '{"model":"m","prompt":"x"}'


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (JSON.encode(), ((CODING, b"gzip"),), 415),
        (gzip.compress(JSON.encode(), mtime=0), ((CODING, b"gzip"),), 415),
        (JSON.encode(), ((b"CONTENT-ENCODING", b"ZSTD"),), 415),
        (JSON.encode(), ((CODING, b"identity"), (CODING, b"deflate")), 415),
        (b'{"model":"m","prompt":"x","a":"+ACI-"}', ((TYPE, b"application/json; charset=utf-7"),), 415),
        (JSON.encode("utf-16"), ((TYPE, b"text/plain; charset=utf-16"),), 415),
        (gzip.compress(JSON.encode(), mtime=0), (), 400),
        (b'{"model":"m","prompt":"x","model":"n"}', (), 404),
        (JSON.encode(), ((CODING, b"identity"),), 200),
        (b'{"model":"m","prompt":"x","temperature":1e400,"logit_bias":{"1":-1e999}}', (), 200),
        (JSON.encode(), ((b"Content_Encoding", b"gzip"), (b"Content_Type", b"text/plain")), 200),
        (JSON.encode(), ((TYPE, b"application/json; charset=UTF-8"),), 200),
    ],
)
async def test_a_worker_gets_no_body_that_it_could_read_otherwise(
    body: bytes, headers: tuple[Header, ...], status: int
) -> None:
    async with running() as bench:
        worker = await bench.worker()
        assert (await bench.ask(post(body, *headers))).status == status
        assert len(worker.calls) == (status == 200)
        for call in worker.calls:
            names = {name.lower().replace(b"_", b"-") for name, _ in call.headers}
            assert CODING.lower() not in names and call.body == body
            assert not call.values(b"content_type")


ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "h\u00e9 \u4f60 \U0001f600"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "\u4f60 \U0001f600"}]},
    "/v1/embeddings": {"input": "\u4f60"},
    "/v1/messages": {"messages": [{"role": "user", "content": "\u4f60"}], "max_tokens": 1},
}


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_body_in_any_encoding_of_json_goes_on_in_utf_8(bench: Bench, encoding: str) -> None:
    """Engines read it with Python's `json.loads`, which takes all of these."""
    worker = await bench.worker()
    kind = (TYPE, f"application/json; charset={encoding.removesuffix('-sig')}".encode())
    for path, fields in ROUTES.items():
        for num in (0, 100_000, *((600_000,) if path == COMPLETIONS else ())):
            pad = "\u4f60" * num
            body = {"model": "m", "rid": "x", "a": pad, **fields}
            sent = json.dumps(body, ensure_ascii=False).encode(encoding)
            assert json.loads(sent) == body
            for headers in ([], [kind]):
                assert (await bench.ask(post(sent, *headers, target=path))).status == 200
                call = worker.calls.pop()
                del body["rid"]
                assert json.loads(call.body.decode("utf-8")) == body
                body["rid"] = "x"
                assert call.values(b"content-length") == [b"%d" % len(call.body)]
                given = b"application/json; charset=utf-8" if encoding == "utf-8-sig" else b"application/json"
                assert call.values(b"content-type") == ([given] if headers else [])


async def test_a_body_that_is_longer_in_utf_8_counts_as_such() -> None:
    async with running("--max-body-bytes", "1000000", "--body-memory-bytes", "3000000") as bench:
        worker = await bench.worker()
        for num, status in ((300_000, 200), (400_000, 413)):
            body = json.dumps({"model": "m", "prompt": "\u4f60" * num}, ensure_ascii=False).encode("utf-16")
            assert len(body) < 1_000_000
            answer = await bench.ask(post(body))
            assert answer.status == status
            if status == 413:
                assert "over 1000000 bytes in UTF-8" in answer.error["message"]
        assert len(worker.calls) == 1
    async with running("--max-body-bytes", "1000000", "--body-memory-bytes", "1000000") as bench:
        await bench.worker()
        body = json.dumps({"model": "m", "prompt": "x" * 400_000}).encode("utf-16")
        answer = await bench.ask(post(body))
        assert (answer.status, answer.error["message"]) == (
            503,
            "the gateway is at its limit of request body memory; retry later",
        )
        for _ in range(5):
            assert (await bench.ask(post(completion("x" * 400_000)))).status == 200, "all room is given back"


@pytest.mark.parametrize("pad", [0, 200_000, 1_200_000], ids=["small", "dense", "large"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b'"\\ud83d and"', "half of a surrogate pair at byte {}, which is not a character"),
        (b'"\\ud83d"', "half of a surrogate pair at byte {}, which is not a character"),
        (b'"\xf0\x9f and"', "it is not UTF-8 at byte {}: invalid continuation byte"),
    ],
    ids=["escaped", "escaped at the end", "bytes"],
)
async def test_half_an_emoji_is_refused_by_its_byte(
    bench: Bench, path: str, pad: int, broken: bytes, reason: str
) -> None:
    worker = await bench.worker()
    begin = b'{"model":"m","a":"' + b"a" * pad + b'","stop":'
    body = begin + broken + b',"prompt":"x","messages":[{"role":"user","content":"x"}]}'
    answer = await bench.ask(post(body, target=path))
    assert answer.status == 400 and worker.calls == []
    assert answer.error["message"] == "the body is not valid JSON: " + reason.format(len(begin) + 1)


@pytest.mark.parametrize("size", [10, 2_000_000])
async def test_a_compressed_body_without_its_header_is_refused_by_name(bench: Bench, size: int) -> None:
    await bench.worker()
    noise = random.Random(1).randbytes(size)
    for compressed, name in ((gzip.compress(noise), "gzip"), (zlib.compress(noise), "deflate")):
        answer = await bench.ask(post(compressed))
        assert answer.status == 400 and f"compressed ({name})" in answer.error["message"]
