"""Texts of engines and gateways in the output of commands: no control character reaches the terminal, and no
text becomes a line of its own."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.support.blackbox.kvgate_command import MODELS, kvgate
from tests.support.fakes import serve, url_of

EVIL = "\x1b[2J\x9b2J\x7f\r\nforged: all is well\u2028\u2029\u0085\u202e\u2066\u200b\x00"


@asynccontextmanager
async def answering(*pages: tuple[str, object], status: int = 400, other: str = EVIL) -> AsyncIterator[str]:
    """URL of a server with some pages of JSON; anything else gets `other`."""
    known = dict(pages)

    async def handle(request: web.Request) -> web.Response:
        if request.path in known:
            return web.json_response(known[request.path])
        return web.Response(status=status, text=other)

    server = await serve(web.route("*", "/{path:.*}", handle))
    try:
        yield url_of(server)
    finally:
        await server.close()


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_an_engines_texts_are_escaped_in_its_report(flags: tuple[str, ...]) -> None:
    pages = (("/health", {}), ("/v1/models", MODELS), ("/version", {"version": "0.11.0"}))
    async with answering(*pages) as url:
        text = await kvgate("engine", "test", url, *flags, is_json=bool(flags))
    assert ("\\u009b2J" if flags else "\\x1b[2J\\x9b2J") in text


async def test_an_engines_texts_are_escaped_where_workers_are_checked() -> None:
    models = {"object": "list", "data": [{"id": EVIL, "object": "model"}, *MODELS["data"]]}
    async with answering(("/health", {}), ("/v1/models", models), ("/version", {"version": EVIL})) as url:
        await kvgate("check", "--worker", url)
    async with answering(status=500) as url:
        await kvgate("check", "--worker", url)


WORKER = {
    **{"id": EVIL, "state": EVIL, "reason": EVIL, "models": [EVIL], "stream": EVIL, "blind": None},
    **{"running": 0, "waiting": 0, "kv_usage": 0.0, "in_flight": 0, "remote_in_flight": 0},
    "predictions": {"exact_share": None},
}
FLEET = {"endpoints": [{"url": EVIL, "state": "joined", "last_error": EVIL, "workers": [WORKER]}]}
FILE = {"name": "key_file", "path": EVIL, "digests": [EVIL], "age_s": 9.0, "error": EVIL}


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_a_gateways_texts_are_escaped_in_the_status(flags: tuple[str, ...]) -> None:
    keys = {"keys": [], "files": [FILE]}
    async with answering(("/admin/workers", FLEET), ("/admin/keys", keys)) as url:
        text = await kvgate("status", "--gateway", url, *flags, is_json=bool(flags))
    assert ("\\u009b2J" if flags else "\\x9b2J") in text


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("why", "d"),
        ("adapter", "list"),
        ("explain", "--prompt-file", "/dev/null"),
    ],
    ids=lambda command: command[0],
)
async def test_errors_of_a_gateway_are_escaped(command: tuple[str, ...]) -> None:
    refusal = json.dumps({"error": {"message": EVIL}}, ensure_ascii=False)
    for body in (refusal, EVIL):
        async with answering(other=body) as url:
            text = await kvgate(*command, "--gateway", url)
        assert body is EVIL or "\\x1b[2J\\x9b2J" in text


async def test_a_gateways_adapters_are_escaped() -> None:
    adapter = {"name": EVIL, "root": EVIL, "workers": [EVIL], "unusable_at": [EVIL]}
    async with answering(("/admin/adapters", {"adapters": [adapter]})) as url:
        assert "\\x1b[2J\\x9b2J" in await kvgate("adapter", "list", "--gateway", url)
