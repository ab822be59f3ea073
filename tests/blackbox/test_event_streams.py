"""Event streams of every grammar reach a client as they come: no line end and no comment holds them."""

import asyncio

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import SSE_HEAD, chunked, completion, post
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client

FLAGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "masked": ("--mask-cached-tokens",),
    "usage asked for": ("--usage-injection", "all"),
}


async def arrives(client: Client, expected: bytes) -> None:
    got = b""
    while len(got) < len(expected):
        got += await client.piece()
    assert got == expected


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
async def test_each_event_and_comment_arrives_before_the_next(end: bytes, flags: tuple[str, ...]) -> None:
    """The worker goes on once the client has what came before."""
    event = b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}'
    parts = [
        b": begin" + end,
        event + end + end,
        b": ping" + end,
        b": ping" + end + end,
        b"event: e" + end + event + end + b"id: 7" + end + end,
    ]
    goes_on = asyncio.Queue[None]()

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD)
        for part in parts:
            await call.send(chunked(part, end=False))
            await goes_on.get()
        await call.send(chunked(b"data: [DONE]" + end + end))

    async with running(*flags) as bench:
        await bench.worker(script=script)
        client = await bench.client()
        await client.send(post(completion(stream=True)))
        assert (await client.head()).status == 200
        for part in parts:
            await arrives(client, part)
            goes_on.put_nowait(None)
        await arrives(client, b"data: [DONE]" + end + end)


async def test_a_stream_of_cr_lines_that_breaks_off_ends_with_an_error_event(bench: Bench) -> None:
    async def script(call: Call) -> None:
        await call.send(
            SSE_HEAD + chunked(b'data: {"choices":[{"text":"x"}]}\r\r: ping\rdata: half', end=False)
        )
        call.reset()

    await bench.worker(script=script)
    answer = await bench.ask(post(completion(stream=True)))
    events = answer.body.replace(b"\r", b"\n").split(b"\n\n")
    assert events[0] == b'data: {"choices":[{"text":"x"}]}'
    assert events[1].startswith(b': ping\ndata: {"error"') and b"half" not in answer.body
