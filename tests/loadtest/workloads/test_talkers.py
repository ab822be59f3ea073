import asyncio
import json
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.workloads.talkers import Talkers
from tests.support.patience import patience

EVENTS = [{"choices": [{"delta": {"content": "so "}}]}, {"choices": [{"delta": {"content": "what"}}]}]


async def test_each_turn_continues_the_received_answer() -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        lines = [f"data: {json.dumps(event)}\n\n" for event in EVENTS] + ["data: [DONE]\n\n"]
        return web.Response(text="".join(lines), content_type="text/event-stream")

    talkers = await talk(answer, max_turns=3)
    assert not talkers.failures
    sessions: dict[str, list[Any]] = {}
    for body in asked:
        sessions.setdefault(body["user"], []).append(body["messages"])
    for turns in sessions.values():
        for before, after in zip(turns, turns[1:], strict=False):
            assert after[: len(before)] == before
            assert after[len(before)] == {"role": "assistant", "content": "so what"}
    assert max(map(len, sessions.values())) > 1
    assert len({turns[0][0]["content"] for turns in sessions.values()}) <= 4


async def test_failures_are_counted() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=503)

    assert (await talk(answer)).failures


async def talk(answer: Any, **options: Any) -> Talkers:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server, asyncio.timeout(patience(30)):
        url = f"http://{server.host}:{server.port}"
        talkers = Talkers(url, seconds=0.3, rate=60.0, pause_s=0.01, **options)
        await talkers.talk()
    return talkers
