"""Messages to Envoy in protobuf's wire format, written by hand: in a part of the time of protobuf's objects.

The contract is `proto/kvgate/v1/ext_proc.proto`; the tests read each message with protobuf. A field is its
number and kind in one byte, here all of kind 2 (length and bytes) or 0 (a number). Frequent messages are
one format each, with a comment that names its fields: compiled code sizes and copies all of it at once.
"""

from collections.abc import Iterable
from typing import Final

from gateway.http.messages import Header

REQUEST_HEADERS: Final = b"\x0a"
RESPONSE_HEADERS: Final = b"\x12"
REQUEST_BODY: Final = b"\x1a"
RESPONSE_BODY: Final = b"\x22"
REQUEST_TRAILERS: Final = b"\x2a"
RESPONSE_TRAILERS: Final = b"\x32"
_IMMEDIATE_RESPONSE: Final = b"\x3a"
"""Fields 1 to 7 of ProcessingResponse."""

_RESPONSE: Final = b"\x0a"  # of CommonReply
_HEADER_MUTATION: Final = b"\x12"  # of CommonResponse
_BODY_MUTATION: Final = b"\x1a"
_CLEAR_ROUTE_CACHE: Final = b"\x28\x01"
_REMOVE_HEADERS: Final = b"\x12"  # of HeaderMutation
_BODY: Final = b"\x0a"  # of BodyMutation
_STATUS: Final = b"\x0a"  # of ImmediateReply
_CODE: Final = b"\x08"
_REPLY_HEADERS: Final = b"\x12"
_REPLY_BODY: Final = b"\x1a"
_DETAILS: Final = b"\x2a"
_DYNAMIC_METADATA: Final = b"\x42"  # field 8 of ProcessingResponse
_FIELDS: Final = b"\x0a"  # of Struct
_MAP_KEY: Final = b"\x0a"
_MAP_VALUE: Final = b"\x12"
_STRING_VALUE: Final = b"\x1a"  # of Value
_STRUCT_VALUE: Final = b"\x2a"
_EMPTY_PIECE: Final = b"\x06\x0a\x04\x1a\x02\x1a\x00"
_LAST_EMPTY_PIECE: Final = b"\x08\x0a\x06\x1a\x04\x1a\x02\x10\x01"

_ONE_OCTET: Final = bytes(range(0x80))
_TWO_OCTETS: Final = b"".join([bytes((size & 0x7F | 0x80, size >> 7)) for size in range(0x4000)])
"""Sizes in one and in two octets, one behind the other: a slice is cheaper than a computation."""


def size_of(value: int) -> bytes:
    """Return a length, seven bits in a byte."""
    if value < 0x80:
        return _ONE_OCTET[value : value + 1]
    if value < 0x4000:
        return _TWO_OCTETS[value * 2 : value * 2 + 2]
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def field(tag: bytes, content: bytes) -> bytes:
    return b"%b%b%b" % (tag, size_of(len(content)), content)


def mutation(changed: Iterable[Header], removed: Iterable[bytes]) -> bytes:
    """Return a HeaderMutation: names in Latin-1 become UTF-8, as protobuf's strings are."""
    parts = [_change(name, value) for name, value in changed]
    for name in removed:
        parts.append(field(_REMOVE_HEADERS, _utf8(name)))
    return b"".join(parts)


def _change(name: bytes, value: bytes) -> bytes:
    key = field(b"\x0a", _utf8(name))
    if value:
        key += field(b"\x1a", value)
    header = size_of(len(key))
    # set_headers { header { key, raw_value }, append_action: OVERWRITE }
    return b"\x0a%b\x0a%b%b\x18\x02" % (size_of(len(key) + len(header) + 3), header, key)


def _utf8(name: bytes) -> bytes:
    return name.decode("latin-1").encode()


def passed(tag: bytes) -> bytes:
    """Return an answer that changes nothing."""
    return tag + b"\0"


def headers(tag: bytes, changed: Iterable[Header], removed: Iterable[bytes]) -> bytes:
    """Return an answer to headers, with their changes."""
    return field(tag, field(_RESPONSE, field(_HEADER_MUTATION, mutation(changed, removed))))


def body(tag: bytes, data: bytes) -> bytes:
    """Return an answer to a body that replaces it."""
    return field(tag, field(_RESPONSE, field(_BODY_MUTATION, field(_BODY, data))))


def streamed(tag: bytes, data: bytes, is_end: bool) -> bytes:
    """Return one piece of a body."""
    if not data:
        return tag + (_LAST_EMPTY_PIECE if is_end else _EMPTY_PIECE)
    end = b"\x10\x01" if is_end else b""
    own = size_of(len(data))
    num = 1 + len(own) + len(data) + len(end)
    piece = size_of(num)
    num += 1 + len(piece)
    mutated = size_of(num)
    num += 1 + len(mutated)
    response = size_of(num)
    whole = size_of(num + 1 + len(response))
    # request_body { response { body_mutation { streamed_response { body, end_of_stream } } } }
    return b"%b%b\x0a%b\x1a%b\x1a%b\x0a%b%b%b" % (tag, whole, response, mutated, piece, own, data, end)


def picked(tag: bytes, changes: bytes, replaced: bytes | None, metadata: bytes) -> bytes:
    """Return the answer with a destination: header changes, a new route, and dynamic metadata."""
    response = field(_HEADER_MUTATION, changes)
    if replaced is not None:
        response += field(_BODY_MUTATION, field(_BODY, replaced))
    return field(tag, field(_RESPONSE, response + _CLEAR_ROUTE_CACHE)) + metadata


def dynamic_metadata(namespace: bytes, key: bytes, value: bytes) -> bytes:
    """Return the field with one value: `namespace { key { string_value } }`, as maps of Struct."""
    inside = field(_MAP_KEY, key) + field(_MAP_VALUE, field(_STRING_VALUE, value))
    struct = field(_STRUCT_VALUE, field(_FIELDS, inside))
    entry = field(_MAP_KEY, namespace) + field(_MAP_VALUE, struct)
    return field(_DYNAMIC_METADATA, field(_FIELDS, entry))


def immediate(status: int, headers: Iterable[Header], content: bytes, details: bytes) -> bytes:
    """Return an answer by Envoy itself."""
    reply = field(_STATUS, _CODE + size_of(status)) + field(_REPLY_HEADERS, mutation(headers, ()))
    reply += field(_REPLY_BODY, content) + field(_DETAILS, details)
    return field(_IMMEDIATE_RESPONSE, reply)
