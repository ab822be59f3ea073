"""Handlers of the console: one for each row of the table."""

import pytest
from aiohttp import web

from gateway.admin.console.event_streams import PATHS
from gateway.admin.console.handlers import console_handlers


async def _answer(request: web.Request) -> web.Response:
    return web.Response()


def test_each_topic_needs_its_source() -> None:
    handlers = console_handlers({topic: _answer for topic in PATHS})
    assert {"console", "console_file", "session", "login", "logout", "events"} == handlers.keys()
    with pytest.raises(KeyError):
        console_handlers({})
