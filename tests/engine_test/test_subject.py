"""The worker under test: what of an answer counts, and when a worker is idle."""

import random
from typing import Any

from aiohttp import web

from gateway.core.engine import EngineMetrics, ModelInfo
from gateway.core.worker import Role
from gateway.discovery.probed import Facts
from gateway.engine_test.subject import EngineAnswer, Subject
from tests.support.fakes import serve, session, url_of

USAGE = b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}}'


class FakeProbe:
    """Probe that finds one request more or less at each scrape."""

    def __init__(self, *running: int | None) -> None:
        self._running = list(running)

    async def metrics(self) -> dict[int, EngineMetrics]:
        num = self._running.pop(0) if len(self._running) > 1 else self._running[0]
        return {0: EngineMetrics(num_requests_running=num)}


def subject(url: str = "http://127.0.0.1:1", probe: Any = None, calls: Any = None) -> Subject:
    return Subject(url, Facts(url, "vllm", (ModelInfo("m"),)), probe, calls, random.Random(1))


def test_usage_counts_in_complete_answers_only() -> None:
    assert EngineAnswer(200, USAGE).cached_tokens == 8
    assert EngineAnswer(500, USAGE).usage is None
    assert EngineAnswer(200, b"{").usage is None


def test_a_failure_is_described_by_its_first_words() -> None:
    assert EngineAnswer(400, b"no\n").describe() == "400 no"
    assert EngineAnswer(0, b"refused").describe() == "no answer (refused)"


def test_prompts_are_new_each_time() -> None:
    it = subject()
    assert it.fresh_prompt(20) != it.fresh_prompt(20)
    assert it.worker.role is Role.BOTH


async def test_no_answer_has_status_0_and_the_failure() -> None:
    async with session() as calls:
        answer = await subject(calls=calls).complete("a", model="m")
    assert answer.status == 0
    assert b"Connection refused" in answer.body


async def test_a_request_names_its_rank() -> None:
    seen: list[str | None] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("x-data-parallel-rank"))
        return web.json_response({})

    server = await serve(web.post("/v1/completions", handle))
    async with session() as calls:
        it = subject(url_of(server), calls=calls)
        await it.complete("a", model="m")
        await it.complete("a", model="m", dp_rank=1)
    await server.close()
    assert seen == [None, "1"]


async def test_a_worker_is_idle_once_nothing_runs() -> None:
    assert await subject(probe=FakeProbe(2, 1, 0)).is_idle_within(5.0) is True
    assert await subject(probe=FakeProbe(1)).is_idle_within(0.0) is False
    assert await subject(probe=FakeProbe(None)).is_idle_within(0.0) is None
