"""Requests and output of `kvgate adapter`; tests/stories/test_adapter.py has a real gateway."""

import argparse
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.commands import lora

pytestmark = pytest.mark.process

ONE = {"url": "http://w:1", "is_done": True, "is_listed": True, "message": "Success"}


class PlayedGateway:
    def __init__(self, status: int, reported: dict[str, Any]) -> None:
        self.status, self.reported = status, reported
        self.asked: list[tuple[str, str, str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        key = request.headers.get("authorization", "")
        self.asked.append((request.method, request.raw_path, key, (await request.read()).decode()))
        return web.json_response(self.reported, status=self.status)


async def run(played: PlayedGateway, *arguments: str, key: str = "") -> int:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", played.answer)
    parser = argparse.ArgumentParser()
    lora.add(parser)
    async with TestServer(app) as server:
        args = parser.parse_args([*arguments, "--gateway", f"http://127.0.0.1:{server.port}/"])
        return await lora.run(args, {"KVGATE_ADMIN_KEY": key} if key else {})


async def test_each_action_is_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    played = PlayedGateway(200, {"workers": [ONE]})
    await run(played, "load", "org/a", "/p", "--model", "m", "--worker", "x", "--worker", "y", key="k")
    await run(played, "unload", "org/a b", "--worker", "http://w:1", "--model", "m")
    body = '{"adapter": "org/a", "path": "/p", "model": "m", "workers": ["x", "y"]}'
    assert played.asked == [
        ("POST", "/admin/adapters", "Bearer k", body),
        ("DELETE", "/admin/adapters/org/a%20b?worker=http://w:1&model=m", "", ""),
    ]
    assert capsys.readouterr().out == "http://w:1: done: Success\n" * 2


async def test_errors_are_printed_and_set_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = {**ONE, "is_done": False, "message": "no room"}
    reported = {"workers": [ONE, failed], "error": {"message": "1 of 2"}}
    assert await run(PlayedGateway(502, reported), "load", "a", "/p") == 1
    assert await run(PlayedGateway(403, {"error": {"message": "off"}}), "load", "a", "/p") == 1
    assert capsys.readouterr().out == (
        "http://w:1: done: Success\nhttp://w:1: FAILED: no room\nthe gateway answers 403: off\n"
    )
