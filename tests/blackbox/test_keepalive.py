"""Keep-alive comments from outside: what clients of waiting streams get, and what SDKs make of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from loadtest import sdks
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client

COMMENT = b": keep-alive\n\n"
FLAGS = ["--stream-keepalive-s", "0.1", "--queue-above-in-flight", "1", "--max-attempts", "1"]
STREAM = post(completion(stream=True), (b"Accept-Encoding", b"gzip"), (b"x-request-id", b"mine"))


class Held:
    """Script of a worker that answers when it is released."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.released = answer, asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await self.released.wait()
        await call.send(self.answer)


@contextlib.asynccontextmanager
async def keeping_alive(*flags: str) -> AsyncIterator[Bench]:
    async with running(*FLAGS, *flags) as bench:
        yield bench


async def opened(client: Client) -> None:
    """Read the head and two comments."""
    head = await client.head()
    assert head.status == 200 and (head.value(b"content-type") or b"").startswith(b"text/event-stream")
    assert head.value(b"x-request-id") == b"mine"
    assert [await client.event() for _ in range(2)] == [COMMENT] * 2


async def rest_of(client: Client) -> bytes:
    """Read to the end of the stream; comments are left out."""
    body = b""
    while piece := await client.piece():
        body += piece
    return body.replace(COMMENT, b"")


async def test_a_stream_is_opened_while_its_prompt_is_computed() -> None:
    async with keeping_alive() as bench:
        script = Held(SSE_HEAD + chunked(event("hi"), DONE))
        worker = await bench.worker(script=script)
        client = await bench.client()
        await client.send(STREAM)
        await opened(client)
        assert worker.calls[0].value(b"accept-encoding") is None, "comments would break a compressed answer"
        script.released.set()
        assert await rest_of(client) == event("hi") + DONE
        script.answer = wire(200, b'{"ok":true}')
        assert (await client.ask(post(completion()))).json == {"ok": True}, "the connection goes on"


async def test_a_queued_stream_is_opened_and_its_timeout_is_an_event() -> None:
    async with keeping_alive("--queue-timeout-s", "1.5") as bench:
        script = Held(wire(200, b"{}"))
        worker = await bench.worker(script=script)
        first, second = await bench.client(), await bench.client()
        await first.send(post(completion()))
        await worker.called()
        await second.send(STREAM)
        await opened(second)
        last = await rest_of(second)
        assert json.loads(last[6:])["error"]["code"] == "queue_timeout" and len(worker.calls) == 1
        script.released.set()
        assert (await first.answer()).status == 200


@pytest.mark.parametrize("status", [400, 503])
async def test_the_error_of_a_worker_is_an_event_of_an_open_stream(status: int) -> None:
    async with keeping_alive() as bench:
        body = b'{"error": {"message": "not today", "code": %d}}' % status
        script = Held(wire(status, body))
        await bench.worker(script=script)
        client = await bench.client()
        await client.send(STREAM)
        await opened(client)
        script.released.set()
        last = await rest_of(client)
        assert json.loads(last[6:]) == {"error": {"message": "not today", "code": status}}


async def test_only_streams_are_opened() -> None:
    async with keeping_alive() as bench:
        script = Held(wire(503, b"{}"))
        worker = await bench.worker(script=script)
        plain, stream = await bench.client(), await bench.client()
        await plain.send(post(completion()))
        await worker.called()
        await stream.send(STREAM)
        await opened(stream)
        script.released.set()
        assert (await plain.answer()).status == 503, "its status could still be sent"


async def test_the_sdk_of_openai_reads_past_comments_and_raises_the_error() -> None:
    async with keeping_alive() as bench:
        script = Held(SSE_HEAD + chunked(COMMENT, event("hi"), COMMENT, DONE))
        worker = await bench.worker(script=script)
        url = f"http://127.0.0.1:{bench.gateway.port}/v1"
        async with sdks.openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            stream = await client.completions.create(model="m", prompt="x", stream=True)
            assert worker.calls[0] and not script.released.is_set(), "the head came before the answer"
            script.released.set()
            assert [piece.choices[0].text async for piece in stream] == ["hi"]
            script = worker.script = Held(wire(400, b'{"error":{"message":"not today","code":400}}'))
            stream = await client.completions.create(model="m", prompt="x", stream=True)
            script.released.set()
            with pytest.raises(sdks.openai.APIError, match="not today"):
                async for _ in stream:
                    pass


async def test_the_sdk_of_anthropic_reads_past_comments_and_raises_the_error() -> None:
    async with keeping_alive() as bench:
        ended = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        script = Held(SSE_HEAD + chunked(ended))
        worker = await bench.worker(script=script)
        url, said = f"http://127.0.0.1:{bench.gateway.port}", [{"role": "user", "content": "hi"}]
        async with sdks.anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
            wanted = {"model": "m", "max_tokens": 5, "messages": said, "stream": True}
            stream = await client.messages.create(**wanted)  # type: ignore[call-overload]
            script.released.set()
            assert [each.type async for each in stream] == ["message_stop"]
            script = worker.script = Held(wire(500, b'{"error":{"message":"not today","code":500}}'))
            stream = await client.messages.create(**wanted)  # type: ignore[call-overload]
            script.released.set()
            with pytest.raises(sdks.anthropic.APIStatusError, match="not today"):
                async for _ in stream:
                    pass
