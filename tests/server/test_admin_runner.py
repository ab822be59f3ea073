"""Server of the admin API: mistakes of its clients are answered, and are no errors in the log."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gateway.server.admin_runner import AdminRunner
from tests.support.patience import patience

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


async def response_of(port: int, data: bytes) -> bytes:
    """All bytes of the answer until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(patience(20)):
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
async def test_invalid_requests_are_answered_without_an_error_in_the_log(
    port: int, data: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert answer in await response_of(port, data)
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]


async def test_an_exception_of_a_handler_is_logged_as_an_error(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert b" 500 " in await response_of(
        port, b"GET /broken HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"
    )
    assert "a bug" in caplog.text and "ERROR" in caplog.text


def test_a_connection_that_ended_under_an_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """uvloop says so in a RuntimeError, which aiohttp logs with its traceback."""
    server_log = logging.getLogger("kvgate.admin.server")
    ended = "unable to perform operation on <UnixTransport closed=True>; the handler is closed"
    with caplog.at_level(logging.INFO, "kvgate.admin"):
        for exc in (RuntimeError(ended), RuntimeError("a bug")):
            try:
                raise exc
            except RuntimeError as caught:
                server_log.exception("Unhandled exception", exc_info=caught)
    (record,) = caplog.records
    assert record.exc_info and str(record.exc_info[1]) == "a bug"
