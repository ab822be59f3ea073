"""Log lines that a peer can cause by the thousand: the first at once, the others as a number.

    worker 10.0.0.7:8000: KV events cannot be decoded: ...
    worker 10.0.0.7:8000: KV events cannot be decoded: ... (4,210 more in 60 s)

Lines are alike that have the same message, before values are put in, and the same first value: what they are
about.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 60.0
MAX_SUBJECTS = 1024
"""Beyond that all lines with one message are alike: a peer may name as many subjects as it likes."""
MAX_TEXT = 500
"""Characters of a value that a peer chose."""


@dataclass(slots=True, eq=False)
class _Line:
    """`values` are those of the last one that was not logged."""

    level: int
    since: float
    values: tuple[object, ...] = ()
    num: int = 0


class SummedLog:
    """`clock` is monotonic seconds. Where a loop runs, sums are logged when their time is over; else with the
    next line of their kind."""

    def __init__(
        self, log: logging.Logger, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._every_s = every_s
        self._clock = clock
        self._lines: dict[tuple[str, str], _Line] = {}

    def __repr__(self) -> str:
        return f"SummedLog({self._log.name}, {len(self._lines)} kinds)"

    def warning(self, message: str, *values: object) -> None:
        self._add(logging.WARNING, message, values)

    def info(self, message: str, *values: object) -> None:
        self._add(logging.INFO, message, values)

    def _add(self, level: int, message: str, values: tuple[object, ...]) -> None:
        values = tuple(map(_short, values))
        now, key = self._clock(), (str(values[0]) if values else "", message)
        if key not in self._lines and len(self._lines) >= MAX_SUBJECTS:
            key = ("", message)
        line = self._lines.get(key)
        if line is not None and now - line.since >= self._every_s:
            self._sum(key)
            line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(level, now)
            self._log.log(level, message, *values)
            self._sum_later(key)
        else:
            line.num, line.values = line.num + 1, values

    def _sum(self, key: tuple[str, str]) -> None:
        """What was counted since the last line; where that is nothing, the next one is a first again."""
        line, now = self._lines.pop(key, None), self._clock()
        if line is not None and line.num:
            text, seconds = f"{key[1]} (%s more in %.0f s)", now - line.since
            self._log.log(line.level, text, *line.values, f"{line.num:,}", seconds)
            self._lines[key] = _Line(line.level, now)

    def _sum_later(self, key: tuple[str, str]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(self._every_s, self._on_timer, key)

    def _on_timer(self, key: tuple[str, str]) -> None:
        self._sum(key)
        if key in self._lines:
            self._sum_later(key)


def _short(value: object) -> object:
    if isinstance(value, int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text):,} characters)"
