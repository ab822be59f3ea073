"""Parts of a message that cost protobuf much, read by hand: packed token ids, and the message around them.

    message ─ apart ─► content of one field, read here
                   └─► the rest, read and checked by protobuf

Where a part is not as our own encoders write it, there is none, and protobuf reads the whole.
"""

from typing import Final

from mypy_extensions import i64

from gateway.epp.message_fields import fields_of
from gateway.epp.wire import size_of

MAX_APART_BYTES: Final = 8000
"""A longer message is protobuf's: it may have more fields than are looked through."""
_LENGTH: Final = 2
_MAX_ID: Final = 0xFFFFFFFF


def apart(message: bytes, number: int) -> tuple[bytes, bytes] | None:
    """Return the content of a field with a length, and the message without it; None where there is not just
    one."""
    if len(message) > MAX_APART_BYTES:
        return None
    start = end = -1
    for each, begin, stop in fields_of(message):
        if each == number:
            if start >= 0:
                return None
            start, end = begin, stop
    begin = start - 1 - len(size_of(end - start))
    if start < 0 or begin < 0 or message[begin] != number << 3 | _LENGTH:
        return None
    return message[start:end], message[:begin] + message[end:]


def ids_of(packed: bytes) -> list[int] | None:
    """Return packed numbers of up to 32 bits; None where one is longer, or does not end."""
    ids: list[int] = []
    size: i64 = len(packed)
    at: i64 = 0
    while at < size:
        octet: i64 = packed[at]
        at += 1
        value: i64 = octet & 0x7F
        shift: i64 = 7
        while octet >= 0x80:
            if at >= size or shift > 28:
                return None
            octet = packed[at]
            at += 1
            value |= (octet & 0x7F) << shift
            shift += 7
        if value > _MAX_ID:
            return None
        ids.append(value)
    return ids
