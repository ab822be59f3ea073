"""Timeouts of an exchange, from table `[proxy]`; 0 is no limit."""

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.config.proxy import ProxySection


def time_left(
    timeouts: ProxySection, now: float, *, started: float, last_activity: float, has_answer: bool
) -> float | None:
    """Return the seconds until the next check; 0 or less: a timeout is exceeded; None: no check is due.

    The first-byte and idle timeouts run from the last activity, before and after the answer's head; the total
    timeout from the request's arrival. Before the head, without a limit, the next check is after the idle
    timeout, since the head may come by then.
    """
    ends: list[float] = []
    quiet_s = timeouts.idle_timeout_s if has_answer else timeouts.first_byte_timeout_s
    if quiet_s:
        ends.append(last_activity + quiet_s)
    elif not has_answer and timeouts.idle_timeout_s:
        ends.append(now + timeouts.idle_timeout_s)
    if timeouts.total_timeout_s:
        ends.append(started + timeouts.total_timeout_s)
    return min(ends) - now if ends else None


def is_total_over(timeouts: ProxySection, now: float, started: float) -> bool:
    return bool(timeouts.total_timeout_s) and now >= started + timeouts.total_timeout_s


NONE: Final = ProxySection(first_byte_timeout_s=0, idle_timeout_s=0, total_timeout_s=0)


class Deadlines:
    """Timeouts of one exchange, with one timer, which is lazy: it reads the clock when it fires. Times are on
    the loop's clock."""

    __slots__ = ("last_activity", "has_answer", "_started", "_timeouts", "_loop", "_on_late", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.last_activity = self._started = loop.time()
        self.has_answer = False
        self._timeouts, self._loop = NONE, loop
        self._on_late: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Deadlines({self._left()} s left)"

    @property
    def is_total_over(self) -> bool:
        return is_total_over(self._timeouts, self._loop.time(), self._started)

    def arm(self, timeouts: ProxySection, on_late: Callable[[], None]) -> None:
        """Start the timer, unless it runs or there is nothing to wait for; `on_late` is called once a timeout
        is exceeded."""
        if self._timer is not None:
            return
        self._timeouts = timeouts
        if (left := self._left()) is not None:
            self._on_late = on_late
            self._timer = self._loop.call_later(max(left, 0.001), self._check)

    def stop(self) -> None:
        """Cancel the timer, and drop `on_late`, which may refer to this object."""
        self._on_late = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _left(self) -> float | None:
        now, since = self._loop.time(), self.last_activity
        return time_left(
            self._timeouts, now, started=self._started, last_activity=since, has_answer=self.has_answer
        )

    def _check(self) -> None:
        self._timer = None
        left, on_late = self._left(), self._on_late
        if left is None or on_late is None:
            return
        if left > 0:
            self.arm(self._timeouts, on_late)
        else:
            on_late()
