"""Workers that speak HTTP badly, over real sockets.

The client gets 502 or sees the cut, and never a byte of another answer; the worker's failure is counted
and its connection is not used again.
"""

import asyncio

import pytest

from tests.conformance.answers import BAD, CUT, TWO, AnswerCase
from tests.support.blackbox.bench import Bench
from tests.support.blackbox.http1_bytes import SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call, Script, answer_ok
from tests.support.blackbox.strict_client import Answer, Cut
from tests.support.patience import patience, until

CASES = [*BAD, *CUT, *TWO]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_bad_answer_ends_in_an_error_or_a_cut(bench: Bench, case: AnswerCase) -> None:
    async def script(call: Call) -> None:
        await call.send(case.data)
        if case.closes:
            call.close()

    worker = await bench.worker(script=script)
    answer = await asked(bench)
    assert answer.status == case.status
    assert not answer.values(b"x-injected")
    if case.status == 502:
        assert answer.error["code"] == "worker_failed"
    elif case.has_error:
        assert answer.body.startswith(case.body + b'data: {"error":')
        assert b"[DONE]" not in answer.body
    else:
        assert answer.body == case.body
    is_bad = case.status == 502 or not case.is_whole or case.has_error
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == is_bad
    worker.script = answer_ok
    assert (await bench.ask(post(completion("next")))).body == b'{"ok":true}'
    first, second = worker.calls
    assert first.link is not second.link
    async with asyncio.timeout(patience(20)):
        await first.gone.wait()


async def asked(bench: Bench) -> Answer:
    """Answer, or the part that arrived before it was cut."""
    client = await bench.client()
    await client.send(post(completion("first", stream=True)))
    try:
        answer = await client.head()
    except Cut:
        return Answer(200, [])  # the head may not have been written yet
    try:
        while piece := await client.piece():
            answer.body += piece
    except Cut:
        assert b'"error"' not in answer.body
    return answer


def endless(begun: bytes, more: bytes) -> Script:
    async def script(call: Call) -> None:
        await call.send(begun)
        while not call.gone.is_set():
            await call.send(more)
            await asyncio.sleep(0)  # a send without back-pressure does not yield

    return script


LINE = b"X-A: " + b"x" * 8000 + b"\r\n"
WITHOUT_END = {
    "header": endless(b"HTTP/1.1 200 OK\r\nX-A: ", b"x" * 65536),
    "headers": endless(b"HTTP/1.1 200 OK\r\n", LINE * 8),
    "reason": endless(b"HTTP/1.1 200 ", b"x" * 65536),
    "interim answers": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "hints": endless(b"", b"HTTP/1.1 103 Early Hints\r\n" + LINE + b"\r\n"),
    "empty lines": endless(b"", b"\r\n" * 8192),
}


@pytest.mark.parametrize("script", WITHOUT_END.values(), ids=WITHOUT_END)
async def test_an_endless_head_is_an_error(bench: Bench, script: Script) -> None:
    worker = await bench.worker(script=script)
    before = bench.gateway.rss_bytes()
    answer = await bench.ask(post(completion()))
    assert (answer.status, answer.error["code"]) == (502, "worker_failed")
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 1
    assert bench.gateway.rss_bytes() - before < 8 << 20
    async with asyncio.timeout(patience(20)):
        await worker.calls[0].gone.wait()


@pytest.mark.parametrize("more", [b"x" * 65536, LINE * 8], ids=["chunk extension", "trailers"])
async def test_endless_framing_is_an_error(bench: Bench, more: bytes) -> None:
    begun = SSE_HEAD + chunked(event("a"), end=False) + (b"0\r\n" if more.startswith(b"X-A") else b"1;")
    worker = await bench.worker(script=endless(begun, more))
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    await client.head()
    assert await client.event() == event("a")
    assert b'"error"' in await client.event()
    async with asyncio.timeout(patience(20)):
        await worker.calls[0].gone.wait()


async def test_a_large_head_with_an_end_passes(bench: Bench) -> None:
    await bench.worker(script=lambda call: call.send(wire(200, b"{}", (b"X-A", b"x" * 60_000))))
    answer = await bench.ask(post(completion()))
    assert (answer.status, answer.body) == (200, b"{}")


async def test_an_answer_before_the_request_is_read_reaches_its_client_only(bench: Bench) -> None:
    """Unread bytes of that request are still on their way; they reach no other request."""

    async def early(call: Call) -> None:
        raise AssertionError("it was answered before it was whole")

    worker = await bench.worker(script=early)
    large = post(completion("x" * (12 << 20)))
    sending = asyncio.get_running_loop().create_task(bench.ask(large))

    def has_answered() -> bool:
        for link in worker.links:
            if b"via: 1.1 kvgate" in link._buffer:
                link._transport.pause_reading()
                link._buffer.clear()
                link.write(wire(413, b"too long"))
        return sending.done()

    await until(has_answered, "the early answer")
    answer = await sending
    assert (answer.status, answer.body) == (413, b"too long")
    worker.script = answer_ok
    assert (await bench.ask(post(completion("next")))).body == b'{"ok":true}'
    assert [call.body for call in worker.calls] == [completion("next")]
