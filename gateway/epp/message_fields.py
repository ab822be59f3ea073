"""Fields of a message in protobuf's wire format, read off its bytes before protobuf makes objects of them.

A message may be as large as a request, 64 MiB of body; everything beside that becomes objects, on the event
loop. Broken messages pass: protobuf rejects them.
"""

from collections.abc import Collection, Iterator
from typing import Final

from gateway.core.errors import InvalidRequest

FREE_BYTES: Final = 64 << 10
"""Messages up to this size are not looked at: they hold too little to take long."""
MAX_BESIDE_BYTES: Final = 128 << 10
"""Bytes beside a body: twice those of the headers."""
MAX_FIELDS: Final = 4096


def fields_of(message: bytes, within: Collection[int] = ()) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of a message's fields with a length, to the first broken one; with numbers
    in `within`, those of the fields inside of these instead. Raises InvalidRequest for over 4,096 fields."""
    at, whole = 0, len(message)
    end, is_wanted = whole, not within
    for _ in range(MAX_FIELDS):
        if at >= end and end < whole:
            end, is_wanted = whole, False
        if at >= end:
            return
        tag, at = _number(message, at, end)
        kind = tag & 7
        if kind == 2:
            size, at = _number(message, at, end)
            if not at <= at + size <= end:
                return
            if is_wanted:
                yield tag >> 3, at, at + size
            elif tag >> 3 in within:
                end, is_wanted = at + size, True
                continue
            at += size
        elif kind == 0:
            _, at = _number(message, at, end)
        else:
            at += {1: 8, 5: 4}.get(kind, whole)
    raise InvalidRequest(f"the message has over {MAX_FIELDS:,} fields")


def _number(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of seven bits in an octet, and its end; 0 where it does not end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        octet = message[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
    return 0, end
