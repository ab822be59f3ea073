"""The server of the admin API: what its clients do wrong is answered, and is no error in the log."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gateway.server.admin_runner import AdminRunner

pytestmark = pytest.mark.process

HEAD = b"POST / HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def _broken(request: web.Request) -> web.Response:
    raise ZeroDivisionError("a bug")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_post("/", _echo)
    app.router.add_get("/broken", _broken)
    runner = AdminRunner(app, 0.2, 0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


async def told(port: int, data: bytes) -> bytes:
    """All that is answered until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(20):
        try:
            return await reader.read() or b"cut"
        except ConnectionResetError:
            return b"cut"
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", b"cut"),
        (b"GET / HT", b"cut"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 10\r\n\r\n{", b"cut"),
        (HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde", b" 400 "),
        (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
    ],
)
async def test_what_clients_do_wrong_is_no_error(
    port: int, data: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert answer in await told(port, data)
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]


async def test_a_bug_of_ours_is_one(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert b" 500 " in await told(port, b"GET /broken HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
    assert "a bug" in caplog.text and "ERROR" in caplog.text
