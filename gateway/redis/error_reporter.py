"""A server that is there and does not do what it is asked: said when it begins, and when it is over."""

import logging
from collections.abc import Callable

from redis.exceptions import OutOfMemoryError, ReadOnlyError

from gateway.redis.topology import is_unauthorized
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

PATIENCE = 2
"""Failures in a row: a server that is not there at all is noticed elsewhere by then, and said once."""


class Unusable(ConnectionError):
    """Why was said already."""


class Trouble:
    """`is_lost`: whether it is known not to be there. What fails is told under a name, as what is over."""

    def __init__(self, where: str, is_lost: Callable[[], bool]) -> None:
        self._where = where
        self._is_lost = is_lost
        self._failures: dict[str, int] = {}
        self._said: str | None = None
        self._log = RateLimitedLog(log)

    def __repr__(self) -> str:
        return f"Trouble({self._said or 'none'})"

    def __bool__(self) -> bool:
        return self._said is not None

    def tell(self, name: str, exc: BaseException) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] < PATIENCE or self._said or self._is_lost() or isinstance(exc, Unusable):
            return
        self._said = str(exc) or type(exc).__name__
        self._log.warning(
            "redis at %s does not do what it is asked, and is done without: %s",
            self._where,
            self._said + _advice(exc),
        )

    def over(self, name: str) -> None:
        self._failures.pop(name, None)
        if self._said and not self._failures:
            self._said = None
            self._log.info("redis at %s does what it is asked again", self._where)


def _advice(exc: BaseException) -> str:
    if isinstance(exc, OutOfMemoryError):
        return "; it has no memory left: raise its maxmemory, or remove what else lies there"
    if isinstance(exc, ReadOnlyError):
        return "; it is a replica: name its master"
    return "; it refuses the password or user: see --redis-password-file" if is_unauthorized(exc) else ""
