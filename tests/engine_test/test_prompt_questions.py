"""Engines with conventions of their own, which are questioned and judged by these: stand-ins for llama.cpp's
and MLX's servers, with a token for each word."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engines.llamacpp import LlamaCpp
from engines.mlx import Mlx
from gateway.app.gateway import Gateway
from gateway.commands.engine import report_on
from gateway.config import config_of
from gateway.core.engine import Engine, ModelInfo
from gateway.discovery.probed import Facts
from gateway.engine_test.prompt_questions import CHATS, TEXTS, prompts
from gateway.engine_test.report import Report, Verdict
from gateway.engine_test.subject import Subject, conventions_of
from gateway.requests.parsing import parse_request
from tests.support.fakes import serve, session, url_of

MARK = "<|assistant|>"


def rendered(messages: list[dict[str, Any]]) -> str:
    return " ".join([*(str(message["content"]) for message in messages), MARK])


class StandIn:
    """Server that answers with the counts of `engine`'s conventions, and keeps the bodies that it gets."""

    def __init__(self, engine: Engine) -> None:
        self.is_llama = engine.name == "llamacpp"
        self.bodies: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        self.is_dead = False

    def routes(self) -> list[web.RouteDef]:
        both = [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.answer),
            web.post("/v1/chat/completions", self.answer),
        ]
        llama = [
            web.get("/metrics", self.metrics),
            web.post("/tokenize", self.tokenize),
            web.post("/apply-template", self.template),
        ]
        return both + (llama if self.is_llama else [])

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"}, status=503 if self.is_dead else 200)

    async def models(self, request: web.Request) -> web.Response:
        owner = {"owned_by": "llamacpp"} if self.is_llama else {}
        return web.json_response({"data": [{"id": "m", "object": "model", "created": 1, **owner}]})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text="llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n")

    async def tokenize(self, request: web.Request) -> web.Response:
        text = (await request.json()).get("content", "")
        return web.json_response({"tokens": [len(word) for word in text.split()]})

    async def template(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": rendered((await request.json())["messages"])})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            return web.json_response({"error": "no JSON"}, status=400)
        self.bodies.append(body)
        prompt = rendered(body["messages"]) if "messages" in body else body.get("prompt")
        if prompt is None or isinstance(body.get("max_tokens"), str):
            return web.json_response({"error": "a mistake"}, status=400)
        if body.get("max_tokens") == -1:
            if not self.is_llama:
                return web.json_response({"error": "max_tokens must be at least 1"}, status=400)
            await asyncio.Event().wait()  # an answer without a limit
        if not self.is_llama and not isinstance(prompt, str):
            self.is_dead = True
        return self.counted(body, prompt)

    def counted(self, body: dict[str, Any], prompt: str | list[Any]) -> web.Response:
        num = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        cached = num - 1 if str(prompt) in self.seen else 0  # whatever the salt
        self.seen.add(str(prompt))
        usage = {"prompt_tokens": num, "prompt_tokens_details": {"cached_tokens": cached}}
        return web.json_response({"choices": [{}] * int(body.get("n", 1)), "usage": usage})


@asynccontextmanager
async def standing_in(engine: Engine) -> AsyncIterator[tuple[StandIn, TestServer]]:
    stand_in = StandIn(engine)
    server = await serve(*stand_in.routes())
    try:
        yield stand_in, server
    finally:
        await server.close()


async def report_of(url: str) -> Report:
    gateway = Gateway(config_of(worker=[url]))
    try:
        return await report_on(gateway, url)
    finally:
        await gateway.stop(0)


@pytest.mark.parametrize("engine", [LlamaCpp(), Mlx()], ids=["llamacpp", "mlx"])
async def test_an_engine_is_judged_by_its_own_conventions(engine: Engine) -> None:
    async with standing_in(engine) as (stand_in, server):
        report = await report_of(url_of(server))
        assert not stand_in.is_dead
    found = {each.question: each.verdict for each in report.findings}
    assert report.is_usable, report.lines()
    assert found["cached tokens"] is found["bad requests"] is found["health"] is Verdict.OK
    assert found["tenants' salts"] is Verdict.UNSUPPORTED
    assert found["texts"] is found["prompts"] is Verdict.UNSUPPORTED  # kvgate needs a tokenizer of its own
    if engine.name == "mlx":
        assert all(isinstance(body["prompt"], str) for body in stand_in.bodies if "prompt" in body)
        assert all(body["model"] == "m" for body in stand_in.bodies)
    else:
        assert all(body.get("max_tokens") != -1 for body in stand_in.bodies)
        assert found["token ids"] is found["several prompts"] is Verdict.OK


async def test_tokens_of_llama_cpp_are_those_of_its_own_template() -> None:
    engine = LlamaCpp()
    async with standing_in(engine) as (_, server), session() as calls:
        url = url_of(server)
        facts = Facts(url, engine.name, (ModelInfo("m"),), sources=())
        subject = Subject(url, facts, None, calls, conventions=conventions_of(engine, None))  # type: ignore[arg-type]
        text = parse_request("/v1/completions", b'{"model":"m","prompt":"a river bed"}')
        chat = b'{"model":"m","messages":[{"role":"user","content":"a river"}]}'
        assert await subject.tokens_of(text) == [1, 5, 3]
        assert await subject.tokens_of(parse_request("/v1/chat/completions", chat)) == [1, 5, len(MARK)]
        found = {each.question: each for each in await prompts(subject, lambda request: [7])}
    for name, kind, shapes in (("texts", "texts", TEXTS), ("prompts", "chats", CHATS)):
        assert found[name].verdict is Verdict.UNSUPPORTED, kind
        assert found[name].observed.count("by kvgate") == len(shapes)
