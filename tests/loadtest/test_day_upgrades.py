"""The figure `day.upgrade_failed_requests`, and that a failure would be one."""

import aiohttp
import pytest
from aiohttp import web

from loadtest.day_upgrades import Load, measure
from tests.fakes import serve, url_of

pytestmark = pytest.mark.process


async def test_what_is_no_whole_answer_is_a_failure() -> None:
    bodies = iter([b"{}", b"data: [DONE]\n\n", b'data: {"error":1}\n\ndata: [DONE]\n\n', b"data: x\n\n"])

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=next(bodies, b""), status=200)

    server = await serve(web.post("/v1/completions", answer))
    async with aiohttp.ClientSession() as session:
        load = Load(url_of(server), session)
        said = [await load._ask(0, stream=stream) for stream in (False, True, True, True)]
        await server.close()
        assert said == ["answered", "answered", "failed: cut", "failed: cut"]
        assert (await load._ask(0, stream=False)).startswith("failed: Client")


def test_two_restarts_fail_nothing() -> None:
    failed, all_of_them = measure(2)
    assert (failed.value, failed.verdict, all_of_them.value > 100) == (0, "met", True)
