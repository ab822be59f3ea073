"""Player of the demo's traffic, before servers that answer, fail, or never do."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gateway.demo import player as player_module
from gateway.demo.player import Player, Side
from gateway.demo.score import Score
from gateway.demo.traffic import DemoRequest
from gateway.runtime.tasks import Tasks
from tests.support.fakes import serve, url_of

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
CHUNKS: list[dict[str, Any]] = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [], "usage": USAGE},
]


async def answer(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in CHUNKS:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def fail(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {}}, status=503)


@asynccontextmanager
async def side(handle: Handle, name: str = "kvgate") -> AsyncIterator[Side]:
    server = await serve(web.post("/v1/chat/completions", handle))
    try:
        yield Side(url_of(server), Score(name))
    finally:
        await server.close()


def requests(num: int) -> list[DemoRequest]:
    return [DemoRequest(0.0, "chat", {"model": "demo", "messages": []}) for _ in range(num)]


async def test_each_side_gets_each_request() -> None:
    async with side(answer) as ours, side(fail, "round robin") as other:
        await Player((ours, other), time.monotonic).play(iter(requests(5)))
    assert (ours.score.num_answered, ours.score.num_failed) == (5, 0)
    assert (ours.score.prompt_tokens, ours.score.cached_tokens) == (45, 40)
    assert (other.score.num_answered, other.score.num_failed) == (0, 5)


PARTS: dict[str, list[dict[str, Any]]] = {
    "text": [{"delta": {"content": "a"}}],
    "tool call": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}}],
    "thought": [{"delta": {"reasoning_content": "hm"}}],
    "another thought": [{"delta": {"reasoning": "hm"}}],
    "refusal": [{"delta": {"refusal": "no"}}],
    "call": [{"delta": {"function_call": {"name": "f"}}}],
    "empty": [{"delta": {}, "finish_reason": "stop"}],
    "second choice": [{"delta": {"content": ""}}, {"delta": {"content": "a"}}],
}


@pytest.mark.parametrize("choices", list(PARTS.values()), ids=list(PARTS))
async def test_an_answer_of_any_kind_is_an_answer(choices: list[dict[str, Any]]) -> None:
    async def only(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in (CHUNKS[0], {"choices": choices}, CHUNKS[2]):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        return response

    async with side(only) as ours:
        await Player((ours,), time.monotonic).play(iter(requests(2)))
    assert (ours.score.num_answered, ours.score.num_failed) == (2, 0)


@pytest.mark.parametrize(
    "chunks", [CHUNKS[:1] + CHUNKS[2:], CHUNKS[:2], []], ids=["role", "no usage", "none"]
)
async def test_an_answer_without_a_token_or_an_end_fails(chunks: list[dict[str, Any]]) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        return response

    async with side(cut) as ours:
        await Player((ours,), time.monotonic).play(iter(requests(1)))
    assert (ours.score.num_answered, ours.score.num_failed) == (0, 1)


async def test_a_side_that_is_late_fails_what_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player_module, "MAX_IN_FLIGHT", 2)
    released = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    async with side(hang) as ours:
        playing = Tasks().start("player", Player((ours,), time.monotonic).play(iter(requests(5))))
        while ours.score.num_failed < 3:  # noqa: ASYNC110 - the player announces nothing
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        released.set()
    assert ours.score.num_answered == 0


async def test_a_side_that_is_gone_fails() -> None:
    ours = Side("http://127.0.0.1:1", Score("kvgate"))
    await Player((ours,), time.monotonic).play(iter(requests(1)))
    assert ours.score.num_failed == 1


async def test_requests_are_sent_at_their_times() -> None:
    now = 100.0
    async with side(answer) as ours:
        slept: list[float] = []
        real = asyncio.sleep

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await real(0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", sleep)
            late = [DemoRequest(at_s, "chat", {}) for at_s in (0.0, 2.5)]
            await Player((ours,), lambda: now).play(iter(late))
    assert slept[:2] == [0.0, 2.5]
