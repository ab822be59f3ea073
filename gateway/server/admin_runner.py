"""Server of the admin API, in a gateway and in a supervisor: time limits and logging.

aiohttp logs a traceback for each request that is not HTTP and each connection that ends within a body: any
client of the port could fill the log.
"""

import logging
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from gateway.runtime.tasks import Tasks
from gateway.server.slow_admin_clients import SlowAdmins

log = logging.getLogger("kvgate.admin")

IDLE_S = 75.0
"""Time that an idle connection to the admin API is kept; a scraper comes more often."""
SHUTDOWN_S = 5.0
"""Time for admin requests under way when the gateway ends, after clients had theirs."""
OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Exceptions caused by clients."""


class _Quiet(logging.Filter):
    """Log filter that moves clients' errors to the debug level."""

    def filter(self, record: logging.LogRecord) -> bool:
        exc = record.exc_info[1] if record.exc_info else None
        if not isinstance(exc, OF_CLIENTS) and "the handler is closed" not in str(exc):
            return True  # the words are uvloop's, of a RuntimeError about a connection that has ended
        log.debug("unreadable admin API request: %s", exc)
        return False


_server_log = logging.getLogger("kvgate.admin.server")
_server_log.addFilter(_Quiet())


@web.middleware
async def _readable(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.RequestPayloadError as exc:
        message = f"unreadable body: {exc}; send it uncompressed, with its Content-Length"
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_request",
        }
        body = msgspec.json.encode({"error": error})
        return web.Response(status=400, body=body, content_type="application/json")


class AdminRunner(web.AppRunner):
    """Runner of the admin API that aborts slow clients. `head_s` and `body_s` are the limits for a request's
    head and body."""

    def __init__(self, app: web.Application, head_s: float, body_s: float) -> None:
        slow = SlowAdmins(head_s, body_s)
        app.middlewares.insert(0, slow.middleware)
        app.middlewares.append(_readable)
        settings: dict[str, Any] = {"access_log": None, "logger": _server_log}
        super().__init__(app, keepalive_timeout=IDLE_S, shutdown_timeout=SHUTDOWN_S, **settings)
        self._slow = slow
        self._tasks = Tasks()

    async def setup(self) -> None:
        await super().setup()
        assert self.server is not None
        self._tasks.start("cut slow admins", self._slow.run(self.server))

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._tasks.stop()
