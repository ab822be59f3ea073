"""Rate-limited log lines: the first of a kind is logged at once, the others as a number.

    worker 10.0.0.7:8000: KV events cannot be decoded: ...
    worker 10.0.0.7:8000: KV events cannot be decoded: ... (4,210 more in 60 s)

Peers can cause such lines by the thousand. Lines are of one kind that have the same message, before values
are put in, and the same first value: the subject.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 60.0
MAX_SUBJECTS = 1024
"""Beyond that all lines with one message are of one kind: a peer may name as many subjects as it likes."""
MAX_TEXT = 500
"""Characters of a value that a peer chose."""
SLACK_S = 0.001
"""Timers may be called a tick of the clock early."""


@dataclass(slots=True, eq=False)
class _Kind:
    """Lines of one kind: `values` of the last line that was not logged; `num` such lines wait for
    their sum."""

    level: int
    since: float
    values: tuple[object, ...] = ()
    num: int = 0


class RateLimitedLog:
    """Logs repeated lines once per `every_s`, with their number. `clock` is monotonic seconds. Where a loop
    runs, a sum is logged when `every_s` is over; else with the next line of its kind."""

    def __init__(
        self, log: logging.Logger, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._every_s = every_s
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def __repr__(self) -> str:
        return f"RateLimitedLog({self._log.name}, {len(self._kinds)} kinds)"

    def error(self, message: str, *values: object) -> None:
        self._add(logging.ERROR, message, values)

    def warning(self, message: str, *values: object) -> None:
        self._add(logging.WARNING, message, values)

    def info(self, message: str, *values: object) -> None:
        self._add(logging.INFO, message, values)

    def _add(self, level: int, message: str, values: tuple[object, ...]) -> None:
        values = tuple(map(_short, values))
        now, key = self._clock(), (str(values[0]) if values else "", message)
        self._sum_due()
        if key not in self._kinds and len(self._kinds) >= MAX_SUBJECTS:
            key = ("", message)
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(level, now)
            self._log.log(level, message, *values)
            return
        if kind.num == 0:
            self._sum_later(kind.since + self._every_s - now)
        kind.num, kind.values = kind.num + 1, values

    def _sum_due(self) -> None:
        """Log the sums of all kinds with `every_s` over; kinds are in the order of their times."""
        now = self._clock()
        while self._kinds:
            key, kind = next(iter(self._kinds.items()))
            seconds = now - kind.since
            if seconds < self._every_s:
                return
            del self._kinds[key]
            if kind.num:
                self._kinds[key] = _Kind(kind.level, now)
                text = f"{key[1]} (%s more in %.0f s)"
                self._log.log(kind.level, text, *kind.values, f"{kind.num:,}", seconds)

    def _sum_later(self, seconds: float) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(seconds + SLACK_S, self._sum_due)


def _short(value: object) -> object:
    if isinstance(value, int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text):,} characters)"
