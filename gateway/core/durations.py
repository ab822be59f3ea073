"""Durations as people write them: 300ms, 30s, 5m, 1h30m, and plain seconds."""

import re
from typing import Final

UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EXAMPLES: Final = "300ms, 30s, 5m, 2h"
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(us|ms|s|m|h|d)")
_WHOLE = re.compile(rf"{_PART.pattern}(?: ?{_PART.pattern})*")


def has_unit(text: str) -> bool:
    """True for a duration with units, such as 1h30m."""
    return _WHOLE.fullmatch(text.strip()) is not None


def seconds_of(text: str) -> float:
    """Read a duration, in seconds. Raises ValueError."""
    text = text.strip()
    if has_unit(text):
        return sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(text))
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"'{text}' is not a duration; give a number of seconds, or one with a unit, as in {EXAMPLES}"
        ) from None
