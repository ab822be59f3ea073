"""Messages of ext_proc that are sent often, written by hand: in a part of the time of protobuf's objects.

The contract is `proto/kvgate/v1/ext_proc.proto`; the tests read each message with protobuf. A field is its
number and kind in one byte, here all of kind 2 (length and bytes) or 0 (a number).
"""

from collections.abc import Iterable
from typing import Final

from gateway.http.messages import Header

REQUEST_HEADERS: Final = b"\x0a"
RESPONSE_HEADERS: Final = b"\x12"
REQUEST_BODY: Final = b"\x1a"
RESPONSE_BODY: Final = b"\x22"
"""Fields 1 to 4 of ProcessingResponse."""

_RESPONSE: Final = b"\x0a"  # of CommonReply
_HEADER_MUTATION: Final = b"\x12"  # of CommonResponse
_BODY_MUTATION: Final = b"\x1a"
_CLEAR_ROUTE_CACHE: Final = b"\x28\x01"
_SET_HEADERS: Final = b"\x0a"  # of HeaderMutation
_REMOVE_HEADERS: Final = b"\x12"
_HEADER: Final = b"\x0a"  # of HeaderChange
_OVERWRITE: Final = b"\x18\x02"
_KEY: Final = b"\x0a"  # of HeaderValue
_RAW_VALUE: Final = b"\x1a"
_BODY: Final = b"\x0a"  # of BodyMutation and StreamedBody
_STREAMED: Final = b"\x1a"
_END_OF_STREAM: Final = b"\x10\x01"
_DYNAMIC_METADATA: Final = b"\x42"  # field 8 of ProcessingResponse
_FIELDS: Final = b"\x0a"  # of Struct
_MAP_KEY: Final = b"\x0a"
_MAP_VALUE: Final = b"\x12"
_STRING_VALUE: Final = b"\x1a"  # of Value
_STRUCT_VALUE: Final = b"\x2a"


def size_of(value: int) -> bytes:
    """Return a length, seven bits in a byte."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def field(tag: bytes, content: bytes) -> bytes:
    return tag + size_of(len(content)) + content


def mutation(changed: Iterable[Header], removed: Iterable[bytes]) -> bytes:
    """Return a HeaderMutation: names in Latin-1 become UTF-8, as protobuf's strings are."""
    parts: list[bytes] = []
    for name, value in changed:
        header = field(_KEY, _utf8(name)) + (field(_RAW_VALUE, value) if value else b"")
        parts.append(field(_SET_HEADERS, field(_HEADER, header) + _OVERWRITE))
    for name in removed:
        parts.append(field(_REMOVE_HEADERS, _utf8(name)))
    return b"".join(parts)


def _utf8(name: bytes) -> bytes:
    return name if name.isascii() else name.decode("latin-1").encode()


def headers(tag: bytes, changed: Iterable[Header], removed: Iterable[bytes]) -> bytes:
    """Return an answer to headers, with their changes."""
    return field(tag, field(_RESPONSE, field(_HEADER_MUTATION, mutation(changed, removed))))


def body(tag: bytes, data: bytes | None) -> bytes:
    """Return an answer to a body that replaces it, or that lets it pass where `data` is None."""
    if data is None:
        return tag + b"\0"
    return field(tag, field(_RESPONSE, field(_BODY_MUTATION, field(_BODY, data))))


def streamed(tag: bytes, data: bytes, is_end: bool) -> bytes:
    """Return one piece of a body."""
    inner = size_of(len(data))
    end = _END_OF_STREAM if is_end else b""
    size = 1 + len(inner) + len(data) if data else 0
    head = [_BODY, inner] if data else []
    size += len(end)
    for each in (_STREAMED, _BODY_MUTATION, _RESPONSE, tag):
        length = size_of(size)
        head[:0] = [each, length]
        size += 1 + len(length)
    return b"".join([*head, data, end])


def picked(
    tag: bytes, changes: bytes, replaced: bytes | None, namespace: bytes, key: bytes, endpoint: bytes
) -> bytes:
    """Return the answer with a destination: header changes, a new route, and `key` in dynamic metadata."""
    response = field(_HEADER_MUTATION, changes)
    if replaced is not None:
        response += field(_BODY_MUTATION, field(_BODY, replaced))
    value = field(_STRING_VALUE, endpoint)
    inside = field(_FIELDS, field(_MAP_KEY, key) + field(_MAP_VALUE, value))
    entry = field(_MAP_KEY, namespace) + field(_MAP_VALUE, field(_STRUCT_VALUE, inside))
    reply = field(tag, field(_RESPONSE, response + _CLEAR_ROUTE_CACHE))
    return reply + field(_DYNAMIC_METADATA, field(_FIELDS, entry))
