"""`kvgate engine test` ends however an engine hangs, and names the questions that had no answer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from gateway import cli
from tests.support.blackbox.kvgate_command import MODELS, kvgate
from tests.support.fakes import serve, url_of
from tests.support.patience import patience

WAIT_S = patience(2)

Hang = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def bytewise(request: web.Request) -> web.StreamResponse:
    """A byte of a valid answer, and so on for ever: no single read takes long."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"{")
    while True:
        await answer.write(b" ")
        await asyncio.sleep(WAIT_S / 20)


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" " * (1 << 16))


async def lines_about(hang: Hang, *, healthy: bool) -> list[str]:
    """Lines of the report on an engine that hangs in all but its list of models, and its health."""

    async def models(request: web.Request) -> web.StreamResponse:
        return web.json_response(MODELS)

    async def version(request: web.Request) -> web.StreamResponse:
        return web.json_response({"version": "0.11.0"})

    async def health(request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def none(request: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound

    routes = [web.get("/v1/models", models), web.get("/version", version), web.get("/{path:.*}", none)]
    first = [web.get("/health", health if healthy else hang), web.route("POST", "/{path:.*}", hang)]
    server = await serve(*first, *routes)
    try:
        text = await kvgate("engine", "test", url_of(server), "--timeout-s", str(WAIT_S), code=1)
    finally:
        await server.close()
    return text.splitlines()


@pytest.mark.parametrize("hang", [never, bytewise])
async def test_questions_without_an_answer_are_named_and_the_test_ends(hang: Hang) -> None:
    lines = await lines_about(hang, healthy=True)
    unanswered = [line for line in lines if f"no answer within {WAIT_S:g} s" in line]
    assert len(unanswered) == 2 and unanswered[0].split()[:3] == ["FAIL", "token", "ids"], lines
    assert any("not asked, since 2 questions had no answer" in line for line in lines)
    assert any(line.split()[:2] == ["ok", "health"] for line in lines)


async def test_an_endless_answer_is_read_to_its_bound() -> None:
    lines = await lines_about(endless, healthy=True)
    assert any("the answer is over 8,388,608 bytes" in line or "no answer within" in line for line in lines)


@pytest.mark.parametrize("hang", [never, bytewise, endless])
async def test_an_engine_that_hangs_at_once_is_reported(hang: Hang) -> None:
    lines = await lines_about(hang, healthy=False)
    assert lines[1].split()[:2] == ["FAIL", "probe"] and "/health" in lines[1]


@pytest.mark.parametrize(
    ("module", "name"), [("status", "TIMEOUT_S"), ("explain", "TIMEOUT_S"), ("lora", "LIST_TIMEOUT_S")]
)
async def test_a_gateway_that_hangs_is_reported(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"gateway.commands.{module}.{name}", 0.1)
    commands = {"explain": ["explain", "--prompt-file", "/dev/null"], "lora": ["adapter", "list"]}
    server = await serve(web.route("*", "/{path:.*}", never))
    try:
        arguments = [*commands.get(module, [module]), "--gateway", url_of(server)]
        assert await asyncio.to_thread(cli.main, arguments) == 2
    finally:
        await server.close()
    assert "not a gateway's admin address: no answer" in capsys.readouterr().err
