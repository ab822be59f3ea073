"""Days that workers print in prompts, asked when a worker joins and at each quarter of an hour.

    joined, 00:00, 00:15, … ─ /tokenize of a chat ─► day (`parity/prober.py`) ─► zone (`parity/worker_day.py`)

Only workers of models with a template that prints the day are asked. A configured zone is taken as it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

from gateway.models.model_entry import ModelEntry
from gateway.parity.worker_day import days_at, until_quarter

log = logging.getLogger("kvgate.models")

AFTER_QUARTER_S = 2.0
"""Seconds after a quarter of an hour at which workers are asked: clocks differ by less."""

DayOf = Callable[[ModelEntry, str, str, Sequence[date]], Awaitable[date | None]]
"""Asks the worker of a URL, which serves the model by a name, which of some days its prompts have; None where
no answer shows it."""
Served = Iterable[tuple[ModelEntry, Mapping[str, str]]]
"""Models, with the names by which the workers of each URL serve them."""


def _now() -> datetime:
    return datetime.now(UTC)


class WorkerDays:
    """Keeps the days of models up to date. `is_fixed`: the configuration has the zone."""

    def __init__(self, day_of: DayOf, *, is_fixed: bool, clock: Callable[[], datetime] = _now) -> None:
        self._day_of = day_of
        self._is_fixed = is_fixed
        self._clock = clock

    def __repr__(self) -> str:
        return f"WorkerDays({'configured' if self._is_fixed else 'asked'})"

    def is_asked(self, entry: ModelEntry) -> bool:
        renderer = entry.tokenizer.renderer
        return not self._is_fixed and renderer is not None and renderer.prints_day

    async def learn(self, entry: ModelEntry, url: str, name: str) -> bool:
        """Ask a worker for its day. Returns True if prompts are made otherwise from now on, or for other
        workers."""
        if not self.is_asked(entry):
            return False
        asked = self._clock()
        day = await self._day_of(entry, url, name, days_at(asked))
        now = self._clock()
        if day is None or now - asked >= until_quarter(asked):
            return False  # no answer, or from before a midnight
        before = entry.day.offset, entry.day.others
        entry.day.observed(url, day, now, self._own(now))
        if entry.day.offset != before[0]:
            log.info(
                "date in prompts of %s: in time zone %s, as its workers print it",
                entry.root, entry.day.zone() or "of the gateway",
            )  # fmt: skip
        return before != (entry.day.offset, entry.day.others)

    def left(self, entry: ModelEntry, url: str) -> None:
        now = self._clock()
        entry.day.left(url, now, self._own(now))

    async def watch(self, served: Callable[[], Served], changed: Callable[[ModelEntry], None]) -> None:
        """Ask all workers after each quarter of an hour, without end."""
        while True:
            await asyncio.sleep(until_quarter(self._clock()).total_seconds() + AFTER_QUARTER_S)
            await self.check(served(), changed)

    async def check(self, served: Served, changed: Callable[[ModelEntry], None]) -> None:
        """Ask all workers now; `changed` is called for each model with other prompts than before."""
        for entry, names in [each for each in served if self.is_asked(each[0])]:
            news = await asyncio.gather(*(self.learn(entry, url, name) for url, name in names.items()))
            if any(news):
                changed(entry)

    def _own(self, now: datetime) -> timedelta:
        """The gateway's own offset from UTC."""
        return now.astimezone().utcoffset() or timedelta()
