"""Retry-After in its whole grammar (RFC 9110, 10.2.3), and the fractions and milliseconds that are sent too.

3 · 007                            seconds, of any length
0.5 · 1. · .25                     fractions: no grammar of RFC 9110, and common
Sun, 06 Nov 1994 08:49:37 GMT      a date: since the answer's own Date, where it has one
Sun, 06 Nov 1994 08:49:37 -0000    as Python's mail library writes it: no date of HTTP either
Sunday, 06-Nov-94 08:49:37 GMT     the obsolete forms of dates, which recipients accept
Sun Nov  6 08:49:37 1994
retry-after-ms: 500                milliseconds, of OpenAI's API; before Retry-After
"""

import calendar
import re
from collections.abc import Iterable
from typing import Final

from gateway.http.messages import Header

MAX_S: Final = 1e9
"""Longest time that is returned, some 30 years: a number of any length is within the grammar."""
MAX_VALUE_BYTES: Final = 1024
"""Longest value that is read."""

_NUMBER: Final = re.compile(rb"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_TIME: Final = rb"([0-2][0-9]):([0-5][0-9]):([0-6][0-9])"
_MONTHS: Final = (
    *(b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun"),
    *(b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"),
)
_MONTH: Final = b"(" + b"|".join(_MONTHS) + b")"
_IMF: Final = re.compile(
    rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) "
    + _MONTH
    + rb" ([0-9]{4}) "
    + _TIME
    + rb" (?:GMT|UTC|[+-]0000)"
)
_RFC_850: Final = re.compile(
    rb"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, ([0-9]{2})-" + _MONTH + rb"-([0-9]{2}) " + _TIME + rb" GMT"
)
_ASCTIME: Final = re.compile(
    rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) " + _MONTH + rb" ([0-9 ][0-9]) " + _TIME + rb" ([0-9]{4})"
)
_YEAR_S: Final = 31_556_952


def retry_after_s(headers: Iterable[Header], now_s: float) -> float | None:
    """Return the seconds that an answer's headers ask to wait, at least 0; None where they name no time.
    `now_s` is the time in seconds since 1970."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found.setdefault(name, value.strip(b" \t"))
    milliseconds = _number(found.get(b"retry-after-ms", b""))
    if milliseconds is not None:
        return min(milliseconds / 1000.0, MAX_S)
    value = found.get(b"retry-after", b"")
    seconds = _number(value)
    if seconds is not None:
        return min(seconds, MAX_S)
    until_s = http_date_s(value, now_s)
    if until_s is None:
        return None
    since_s = http_date_s(found.get(b"date", b""), now_s)
    return min(max(0.0, until_s - (now_s if since_s is None else since_s)), MAX_S)


def _number(value: bytes) -> float | None:
    if len(value) > MAX_VALUE_BYTES or _NUMBER.fullmatch(value) is None:
        return None
    return float(value)


def http_date_s(value: bytes, now_s: float) -> float | None:
    """Return a date of HTTP in seconds since 1970; None for anything else. `now_s` settles the century of a
    year of two digits: never more than 50 years from now."""
    if found := _IMF.fullmatch(value):
        day, month, year, hour, minute, second = found.groups()
    elif found := _RFC_850.fullmatch(value):
        day, month, year, hour, minute, second = found.groups()
        year = _full_year(int(year), now_s)
    elif found := _ASCTIME.fullmatch(value):
        month, day, hour, minute, second, year = found.groups()
    else:
        return None
    number = _MONTHS.index(month) + 1
    if int(hour) > 23 or not 1 <= int(day) <= 31 or not int(year):
        return None
    when = (int(year), number, int(day), int(hour), int(minute), int(second))
    return float(calendar.timegm((*when, 0, 0, 0)))


def _full_year(two_digits: int, now_s: float) -> bytes:
    latest = 1970 + int(now_s // _YEAR_S) + 50
    return b"%d" % (latest - (latest - two_digits) % 100)
