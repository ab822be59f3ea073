"""`kvgate engine test` against a simulated engine, and against one that does something else than it says.

`Liar` stands before a simulated engine and alters requests or answers on the way; its events come from the
engine itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engines.sim import Sim, SimConfig
from gateway.app import bundled_tokenizer
from gateway.app.gateway import Gateway
from gateway.commands.engine import report_on
from gateway.config import config_of
from gateway.config.models import ModelTable
from gateway.engine_test import questions
from gateway.engine_test.report import Report, Verdict
from gateway.engine_test.subject import EngineAnswer, Subject
from tests.support.fakes import serve, url_of
from tests.support.patience import patience

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests: what is predicted of a simulated engine has tests of its own."""
    monkeypatch.setattr(questions, "NUM_PREDICTIONS", 12)


Alter = Callable[[dict[str, Any]], None]
FAST: dict[str, Any] = {"prefill_tokens_per_s": 200_000.0, "decode_tokens_per_s": 500.0}


def unaltered(body: dict[str, Any]) -> None:
    pass


@dataclass
class Liar:
    """Passes requests on. `request` alters their JSON bodies, `answer` those of the answers; `statuses`
    replaces a status."""

    sim: Sim
    request: Alter = unaltered
    answer: Alter = unaltered
    statuses: dict[int, int] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        if data.startswith(b"{") and len(data) > 1:
            body = json.loads(data)
            self.request(body)
            data = json.dumps(body).encode()
        async with aiohttp.ClientSession() as session:
            headers = {name: request.headers[name] for name in ("Content-Type",) if name in request.headers}
            url = self.sim.url + request.path_qs
            async with session.request(request.method, url, data=data, headers=headers) as answer:
                body_bytes, status = await answer.read(), self.statuses.get(answer.status, answer.status)
                if answer.content_type == "application/json":
                    body = json.loads(body_bytes)
                    if isinstance(body, dict):
                        self.answer(body)
                    body_bytes = json.dumps(body).encode()
                return web.Response(status=status, body=body_bytes, content_type=answer.content_type)


@asynccontextmanager
async def simulated(**flags: Any) -> AsyncIterator[Sim]:
    sim = await Sim(SimConfig(port=0, **(FAST | flags))).start()
    try:
        yield sim
    finally:
        await sim.stop()


@asynccontextmanager
async def lying(sim: Sim, **lies: Any) -> AsyncIterator[TestServer]:
    server = await serve(web.route("*", "/{path:.*}", Liar(sim, **lies).handle))
    try:
        yield server
    finally:
        await server.close()


async def report_of(url: str, **options: Any) -> Report:
    gateway = Gateway(config_of(worker=[url], **options))
    try:
        return await report_on(gateway, url)
    finally:
        await gateway.stop(0)


def verdicts(report: Report) -> dict[str, Verdict]:
    return {finding.question: finding.verdict for finding in report.findings}


async def test_a_simulated_engine_is_right_in_everything() -> None:
    async with simulated(lora=("a",), dp_size=2) as sim:
        report = await report_of(sim.url)
    assert set(verdicts(report).values()) == {Verdict.OK}, report.lines()
    assert list(verdicts(report)) == [
        "load", "token ids", "cached tokens", "events", "predictions", "replay", "tenants' salts",
        "unknown model", "adapter a", "ranks", "texts", "prompts", "several prompts", "several answers",
        "cancelled stream", "unknown field", "bad requests", "health",
    ]  # fmt: skip


async def test_an_engine_without_events_or_counts_is_usable() -> None:
    async with simulated(events=False, prompt_tokens_details=False) as sim:
        report = await report_of(sim.url)
    found = verdicts(report)
    assert report.is_usable, report.lines()
    assert (found["events"], found["cached tokens"]) == (Verdict.UNSUPPORTED, Verdict.UNSUPPORTED)
    assert found["tenants' salts"] is Verdict.INCONCLUSIVE


async def test_an_engine_without_a_replay_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "EVENTS_S", 0.5)
    async with simulated(replay=False) as sim:
        await report_of(sim.url)  # it has a past now
        report = await report_of(sim.url)
    assert verdicts(report)["replay"] is Verdict.UNSUPPORTED, report.lines()
    assert report.is_usable


def drop_salt(body: dict[str, Any]) -> None:
    body.pop("cache_salt", None)


def answer_any_model(body: dict[str, Any]) -> None:
    if body.get("model") != "a":
        body["model"] = "m"


def name_the_base(body: dict[str, Any]) -> None:
    if body.get("model") == "a":
        body["model"] = "m"


def add_cached(body: dict[str, Any]) -> None:
    if details := (body.get("usage") or {}).get("prompt_tokens_details"):
        details["cached_tokens"] = max(details["cached_tokens"] - 16, 0)


def change_tokens(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), list) and body["prompt"] and isinstance(body["prompt"][0], int):
        body["prompt"] = [token ^ 1 for token in body["prompt"]]


def count_another(body: dict[str, Any]) -> None:
    if "count" in body:
        body["tokens"], body["count"] = [*body["tokens"], 1], body["count"] + 1


@pytest.mark.parametrize(
    "question, verdict, lies",
    [
        ("tenants' salts", Verdict.FAIL, {"request": drop_salt}),
        ("unknown model", Verdict.UNSUPPORTED, {"request": answer_any_model}),
        ("adapter a", Verdict.FAIL, {"request": name_the_base}),
        ("predictions", Verdict.FAIL, {"answer": add_cached}),
        ("events", Verdict.FAIL, {"request": change_tokens}),
        ("prompts", Verdict.FAIL, {"answer": count_another}),
        ("bad requests", Verdict.FAIL, {"statuses": {400: 500}}),
        ("unknown model", Verdict.FAIL, {"statuses": {404: 500}}),
    ],
)
async def test_an_engine_that_does_something_else_is_found_out(
    question: str, verdict: Verdict, lies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "EVENTS_S", 1.0)
    monkeypatch.setattr(questions, "IDLE_S", 1.0)
    flags = {"lora": ("a",), "decode_tokens_per_s": 10_000.0}
    async with simulated(**flags) as sim, lying(sim, **lies) as server:
        report = await report_of(url_of(server))
    assert verdicts(report)[question] is verdict, report.lines()
    assert report.is_usable is (verdict is not Verdict.FAIL)


def count_one_more_in_chats(body: dict[str, Any]) -> None:
    if body.get("object") == "chat.completion":
        body["usage"]["prompt_tokens"] += 1


@pytest.mark.parametrize("is_alike", [True, False])
async def test_a_given_tokenizer_is_compared_with_the_counts_of_texts_and_of_chats(is_alike: bool) -> None:
    lies = {} if is_alike else {"answer": count_one_more_in_chats}
    async with simulated() as sim, lying(sim, **lies) as server:
        report = await report_of(url_of(server), tokenizer=[str(bundled_tokenizer())])
    words = {each.question: each.observed for each in report.findings}
    found = verdicts(report)
    assert found["tokenizer"] is found["texts"] is Verdict.OK, report.lines()
    assert words["texts"] == "kvgate and the answers agree on 3 of 3 texts"
    assert found["prompts"] is (Verdict.OK if is_alike else Verdict.FAIL), report.lines()
    assert report.is_usable is is_alike


async def test_a_tokenizer_that_cannot_be_used_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    async with simulated() as sim:
        report = await report_of(sim.url, models={"m": ModelTable(tokenizer=str(tmp_path))})
    assert verdicts(report)["tokenizer"] is Verdict.FAIL, report.lines()


async def test_an_engine_that_ends_during_the_test_is_wrong() -> None:
    async with simulated() as sim:
        ended = False

        def end(body: dict[str, Any]) -> None:
            nonlocal ended
            ended |= isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], list)

        liar = Liar(sim, request=end)
        inner = liar.handle

        async def handle(request: web.Request) -> web.StreamResponse:
            return web.Response(status=503) if ended else await inner(request)

        server = await serve(web.route("*", "/{path:.*}", handle))
        try:
            report = await report_of(url_of(server))
        finally:
            await server.close()
    assert verdicts(report)["several prompts"] is Verdict.FAIL, report.lines()
    assert not report.is_usable


async def test_an_engine_that_hangs_is_asked_two_questions_and_its_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(self: Subject, *arguments: object) -> EngineAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Subject, "send", hang)
    async with simulated() as sim:
        gateway = Gateway(config_of(worker=[sim.url]))
        try:
            report = await report_on(gateway, sim.url, patience(1))
        finally:
            await gateway.stop(0)
    words = {finding.question: finding.observed for finding in report.findings}
    assert words["token ids"] == words["events"] == f"no answer within {patience(1):g} s"
    assert words["salts"] == words["names"] == "not asked, since 2 questions had no answer"
    assert verdicts(report)["health"] is Verdict.OK and not report.is_usable
