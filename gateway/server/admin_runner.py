"""The server of the admin API, in a gateway and in a supervisor: time limits, and what it logs.

Its library (aiohttp) logs a traceback for each request that is no HTTP and each connection that ends within a
body: whoever reaches the port would write into the log as much as they like.
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
"""How long an idle connection to the admin API is kept; a scraper comes more often."""
SHUTDOWN_S = 5.0
"""For admins' requests under way when the gateway ends, after its clients' had their time."""
OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Failures that a client brings about."""


class _Quiet(logging.Filter):
    """What clients do wrong is answered, and for debugging only in the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        exc = record.exc_info[1] if record.exc_info else None
        if not isinstance(exc, OF_CLIENTS):
            return True
        log.debug("a request to the admin API could not be read: %s", exc)
        return False


_server_log = logging.getLogger("kvgate.admin.server")
_server_log.addFilter(_Quiet())


@web.middleware
async def _readable(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.RequestPayloadError as exc:
        message = f"the body cannot be read: {exc}; send it as it is, with its Content-Length"
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_request",
        }
        body = msgspec.json.encode({"error": error})
        return web.Response(status=400, body=body, content_type="application/json")


class AdminRunner(web.AppRunner):
    """`head_s` and `body_s` are for a request's head and body. Set up, it cuts whoever is slower."""

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
