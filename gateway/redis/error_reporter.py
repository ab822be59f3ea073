"""Log of Redis failures: one line when they begin, one when they are over."""

import logging
from collections.abc import Callable

from redis.exceptions import OutOfMemoryError, ReadOnlyError

from gateway.core.causes import cause_of
from gateway.redis.master_lookup import is_unauthorized
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

MIN_FAILURES = 2
"""Failures in a row before a warning: by then a lost server is known elsewhere, and logged once."""


class AlreadyReported(ConnectionError):
    """Redis is unusable, and the reason is logged already."""


class ErrorReporter:
    """Reports a server that answers but rejects commands. Failures are kept by name; `is_lost` returns True
    for a lost server, which is reported elsewhere."""

    def __init__(self, where: str, is_lost: Callable[[], bool]) -> None:
        self._where = where
        self._is_lost = is_lost
        self._failures: dict[str, int] = {}
        self._reason: str | None = None
        self._log = RateLimitedLog(log)

    def __repr__(self) -> str:
        return f"Trouble({self._reason or 'none'})"

    def __bool__(self) -> bool:
        return self._reason is not None

    def report(self, name: str, exc: BaseException) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        if (
            self._failures[name] < MIN_FAILURES
            or self._reason
            or self._is_lost()
            or isinstance(exc, AlreadyReported)
        ):
            return
        self._reason = cause_of(exc)
        self._log.warning(
            "redis %s failing, continuing without it: %s",
            self._where,
            self._reason + _advice(exc),
        )

    def recovered(self, name: str) -> None:
        self._failures.pop(name, None)
        if self._reason and not self._failures:
            self._reason = None
            self._log.info("redis %s works again", self._where)


def _advice(exc: BaseException) -> str:
    if isinstance(exc, OutOfMemoryError):
        return "; it is out of memory: raise maxmemory, or remove other data"
    if isinstance(exc, ReadOnlyError):
        return "; it is a replica: configure its master"
    return "; it rejects the password or user: see --redis-password-file" if is_unauthorized(exc) else ""
