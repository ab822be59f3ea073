"""Day that workers print in prompts, and the offset of their clocks from UTC that follows. Pure.

    tokens of a worker's chat ─ ours of which day? ─► its day ─► offset nearest to the one believed
                                                                 └► offset of most workers: the model's

A day leaves open half of all offsets, so the nearest is taken: it is right until the worker's midnight, and
exact after the check that follows it. All zones are whole quarters of an hour.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from typing import Final

QUARTER: Final = timedelta(minutes=15)
EARLIEST, LATEST = timedelta(hours=-12), timedelta(hours=14)
"""Offsets of the world's zones."""


def days_at(now: datetime) -> list[date]:
    """Days that it is somewhere at a time in UTC, that of UTC first."""
    return list(dict.fromkeys([now.date(), (now + EARLIEST).date(), (now + LATEST).date()]))


def until_quarter(now: datetime) -> timedelta:
    """Time until the next midnight of some zone, a whole quarter of an hour."""
    begun = timedelta(minutes=now.minute, seconds=now.second, microseconds=now.microsecond)
    return QUARTER - begun % QUARTER


def nearest_offset(day: date, now: datetime, believed: timedelta) -> timedelta:
    """Offset nearest to the one believed at which it is that day at a time in UTC."""
    if (now + believed).date() == day:
        return believed
    begins = datetime.combine(day, time(), now.tzinfo) - now
    if believed < begins:
        return -(-begins // QUARTER) * QUARTER
    return (begins + timedelta(days=1) - timedelta.resolution) // QUARTER * QUARTER


class ModelDay:
    """Offsets of a model's workers, by URL, None for the gateway's own. `offset` is that of most of them;
    `others` are the workers of another day, each with the reason in words."""

    def __init__(self) -> None:
        self._offsets: dict[str, timedelta | None] = {}
        self.offset: timedelta | None = None
        self.others: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"ModelDay({self.offset}, {len(self._offsets)} workers, {len(self.others)} of another day)"

    def observed(self, url: str, day: date, now: datetime, own: timedelta) -> None:
        """Note the day of a worker at a time in UTC; `own` is the gateway's offset."""
        believed = self._offsets.get(url, self.offset)
        offset = nearest_offset(day, now, own if believed is None else believed)
        self._offsets[url] = None if offset == own else offset
        self._choose(now, own)

    def left(self, url: str, now: datetime, own: timedelta) -> None:
        """Forget a worker that is gone."""
        if url in self._offsets:
            del self._offsets[url]
            self._choose(now, own)

    def zone(self, url: str | None = None) -> timezone | None:
        """Zone of a worker's clock, or of the model's; None for the gateway's own."""
        offset = self.offset if url is None else self._offsets.get(url, self.offset)
        return None if offset is None else timezone(offset)

    def _choose(self, now: datetime, own: timedelta) -> None:
        def day_of(offset: timedelta | None) -> date:
            return (now + (own if offset is None else offset)).date()

        days = {url: day_of(offset) for url, offset in self._offsets.items()}
        counts, believed = Counter(days.values()), day_of(self.offset)
        day = max(counts, key=lambda each: (counts[each], each == believed, each), default=believed)
        offsets = Counter(offset for url, offset in self._offsets.items() if days[url] == day)
        self.offset = max(offsets, key=lambda each: (offsets[each], each == self.offset), default=None)
        self.others = {
            url: f"its clock is in another zone: prompts have {theirs} there, and {day} at most workers"
            for url, theirs in days.items()
            if theirs != day
        }
