"""Audit log of the admin port: each call that changes something, and each that is refused.

    admin API: POST /admin/workers/10.0.0.3:8000/drain by key '0b1c2d3e4f50' from 10.1.2.3: 200
    admin API: GET /admin/workers by an unknown key from 10.1.2.4: 401, unknown API key

A line names the caller's key by its id, the path without its query, and the address of the connection. It has
no key, not even one that stands in its path, and no body. Refusals are written one by one up to a number a
minute, and beyond it as a number: a client without a key must not fill the log.
"""

import logging
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.core.caller import Caller
from gateway.core.decode_errors import UNREADABLE
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.server.admin_server import MisdirectedResponse
from gateway.tenancy.auth.api_keys import id_of, is_ours

log = logging.getLogger("kvgate.audit")

READS: Final = frozenset({"GET", "HEAD"})
REFUSED: Final = frozenset({401, 403, 421})
UNCHANGING: Final = frozenset({"/admin/explain"})
"""Paths that change nothing whatever the method."""
NO_KEY: Final = "no key"
CALLER_HEADER: Final = "x-kvgate-admin-caller"
"""Header in which a supervisor names the caller to its processes; a client's own is dropped."""
MAX_LINES_PER_MINUTE: Final = 100
MAX_PATH_CHARS, MAX_REASON_CHARS = 200, 300
_SECRET: Final = re.compile(r"(kvg-[0-9a-f]{12}-)[\w-]+")

_caller: ContextVar["AdminCaller | None"] = ContextVar("admin caller", default=None)


class AdminCaller:
    """Caller of one request to the admin port, for people; `name` is set as it becomes known."""

    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = NO_KEY


def name_caller(caller: Caller | None, shown: list[bytes]) -> None:
    """Name the caller of the current call: authenticated, or by the credentials that it showed."""
    current = _caller.get()
    if current is None:
        return
    ids = [id_of(key).decode() for key in shown if is_ours(key)]
    if caller is not None:
        current.name = f"key '{caller.name}'"
    elif shown:
        current.name = f"key '{ids[0]}'" if ids else "an unknown key"


def caller_of(request: web.Request) -> str:
    """Name of a call's caller: its key, else its address. In a process of a supervisor: as that names it;
    empty where it does not."""
    current = _caller.get()
    if current is None:
        return request.headers.get(CALLER_HEADER, "")
    return current.name if current.name != NO_KEY else str(request.remote)


class AuditLog:
    """Writes the lines. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sums = RateLimitedLog(log, clock=clock)
        self._minute = 0
        self._num_lines = 0

    def __repr__(self) -> str:
        return f"AuditLog({self._num_lines} refusals in minute {self._minute})"

    def add(self, call: tuple[str, str, str, str], status: int, reason: str) -> None:
        """Write a line; `call` has method, path, caller and address."""
        method, path, caller, address = call
        path, reason = (_SECRET.sub(r"\1…", text) for text in (path, reason))
        path = path if len(path) <= MAX_PATH_CHARS else path[:MAX_PATH_CHARS] + "..."
        if status < 400:
            return log.info("admin API: %s %s by %s from %s: %d", method, path, caller, address, status)
        reason = reason if len(reason) <= MAX_REASON_CHARS else reason[:MAX_REASON_CHARS] + "..."
        values = method, path, caller, address, status, reason
        if self._has_room():
            return log.warning("admin API: %s %s by %s from %s: %d, %s", *values)
        text = "admin API: too many refused calls from %s, logging only some; the last: %s %s by %s: %d, %s"
        return self._sums.warning(text, address, method, path, caller, status, reason)

    def _has_room(self) -> bool:
        minute = int(self._clock() / 60)
        if minute != self._minute:
            self._minute, self._num_lines = minute, 0
        self._num_lines += 1
        return self._num_lines <= MAX_LINES_PER_MINUTE


def auditing(audit: AuditLog) -> Middleware:
    """Middleware around all others."""

    @web.middleware
    async def audited(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller, status, reason, is_refused = AdminCaller(), 500, "no answer", False
        token = _caller.set(caller)
        try:
            answer = await handler(request)
            status, reason = answer.status, _reason_of(answer)
            is_refused = isinstance(answer, MisdirectedResponse)
            return answer
        except web.HTTPException as exc:
            status, reason = exc.status, exc.reason
            raise
        finally:
            _caller.reset(token)
            if is_refused or is_audited(request.method, request.path, status):
                call = request.method, request.path, caller.name, str(request.remote)
                audit.add(call, status, reason)

    return audited


def is_audited(method: str, path: str, status: int) -> bool:
    """True for a call that may change something, and for one that was refused."""
    return status in REFUSED or (method not in READS and path not in UNCHANGING)


def _reason_of(answer: web.StreamResponse) -> str:
    """Message of the gateway's own error."""
    body = answer.body if isinstance(answer, web.Response) else None
    if answer.status < 400 or not isinstance(body, bytes):
        return answer.reason or ""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (*UNREADABLE, LookupError):
        return answer.reason or ""
