"""Units of a trace's clock. Traces name none: the ticks show it."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Ticks of each in a second."""
EPOCH_S = (9e8, 4.2e9)
"""Seconds since 1970 in the years 1998 to 2103: a clock with all ticks there counts from 1970."""
DENSE_TICKS = 20.0
"""Mean gap between two requests, in ticks, up to which the unit is seconds; from there to a thousand times as
much it is milliseconds, and so on. A trace has a request in 20 ms to 20 s."""
SPARSE_S = 2000.0
"""Mean gap up to which a format's own unit of seconds is believed."""


def ticks_of(value: float | str) -> tuple[float, bool]:
    """Time as a number; True beside it for an ISO time, which is in seconds since 1970 (UTC where it has no
    zone). Raises ValueError."""
    try:
        ticks = float(value)
    except ValueError:
        when = datetime.fromisoformat(str(value).strip().replace(" UTC", "+00:00"))
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        if when.year < 1970:
            raise ValueError(f"{value} is before 1970") from None
        return when.timestamp(), True
    if not math.isfinite(ticks):
        raise ValueError(f"{value} is not a time")
    return ticks, False


def unit_of(ticks: Sequence[float], own: str | None = None, *, is_whole: bool = True) -> str:
    """Name of a clock's unit. `own` is the unit of the format, kept where the gaps allow it; `is_whole` if
    all are written without a fraction."""
    if not ticks:
        return own or "s"
    low, high = min(ticks), max(ticks)
    for name, per_s in UNITS.items():
        if EPOCH_S[0] * per_s <= low and high <= EPOCH_S[1] * per_s:
            return name
    gap = (high - low) / max(len(ticks) - 1, 1)
    if not gap or (own and _allows(own, gap, is_whole)):
        return own or "s"
    for name, per_s in UNITS.items():
        if gap < DENSE_TICKS * per_s:
            return name
    return "ns"


def _allows(own: str, gap: float, is_whole: bool) -> bool:
    """Check a unit against the mean gap: milliseconds are whole where many requests share each second."""
    if own == "s":
        return gap < SPARSE_S
    if own == "ms":
        return gap < DENSE_TICKS * 1e3 and (gap >= DENSE_TICKS or (is_whole and gap >= 1.0))
    return True
