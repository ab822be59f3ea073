"""Memory for bodies is bounded and becomes free again; a worker reads each body as the gateway did."""

import asyncio
import gzip

import pytest

from tests.blackbox.harness import (
    COMPLETIONS,
    Call,
    Header,
    completion,
    lasting,
    post,
    request,
    running,
    until,
    visiting,
)

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
        (JSON.encode("utf-16"), ((TYPE, b"application/json; charset=utf-16"),), 415),
        (JSON.encode("utf-16"), ((TYPE, b"application/json"),), 400),
        (JSON.encode("utf-8-sig"), ((TYPE, b"application/json"),), 400),
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
