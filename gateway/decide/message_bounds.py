"""Bounds on a message of the decision service, read off its bytes before protobuf makes objects of them.

A message may be as large as a request, 64 MiB of `body`; everything beside that becomes objects, on the event
loop. Broken messages pass: protobuf rejects them.
"""

from collections.abc import Iterator
from typing import Final

from gateway.core.errors import InvalidRequest
from gateway.proto.kvgate.v1 import decide_pb2 as pb

FREE_BYTES: Final = 64 << 10
"""Messages up to this size are not looked at: they hold too little to take long."""
MAX_BESIDE_BYTES: Final = 128 << 10
"""Bytes beside the body and the token ids: twice those of the headers."""
MAX_FIELDS: Final = 4096
MAX_TOKEN_IDS: Final = 1 << 18
"""Token ids of a prompt, which become a body in some 7 ms. A longer prompt is sent as `body`, and is read
beside the event loop."""

_FIELDS: Final = pb.DecideRequest.DESCRIPTOR.fields_by_name
_BODY: Final[int] = _FIELDS["body"].number
_TOKEN_IDS: Final[int] = _FIELDS["token_ids"].number
_DECIDE: Final[int] = pb.SessionRequest.DESCRIPTOR.fields_by_name["decide"].number
_LAST_OCTETS: Final = bytes(range(0x80))
"""Octets that end a number: the others have their high bit set."""


def check_bounds(message: bytes, kind: type) -> None:
    """Check a message of a kind: DecideRequest, SessionRequest or ReportRequest. Raises InvalidRequest."""
    if len(message) <= FREE_BYTES:
        return
    num_beside, num_ids = len(message), 0
    for number, start, end in _fields_of_decide(message, kind):
        if number == _BODY:
            num_beside -= end - start
        elif number == _TOKEN_IDS:
            num_beside -= end - start
            num_ids += end - start - len(message[start:end].translate(None, _LAST_OCTETS))
    if num_ids > MAX_TOKEN_IDS:
        raise InvalidRequest(f"at most {MAX_TOKEN_IDS:,} token ids are taken; send a longer prompt as 'body'")
    if num_beside > MAX_BESIDE_BYTES:
        raise InvalidRequest(
            f"at most {MAX_BESIDE_BYTES:,} bytes are taken beside the body and the token ids"
        )


def _fields_of_decide(message: bytes, kind: type) -> Iterator[tuple[int, int, int]]:
    fields = _fields(message, 0, len(message)) if kind is not pb.ReportRequest else ()
    for number, start, end in fields:
        if kind is pb.DecideRequest:
            yield number, start, end
        elif number == _DECIDE:
            yield from _fields(message, start, end)


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the fields with a length, to the first broken one. Raises InvalidRequest
    for very many fields."""
    for _ in range(MAX_FIELDS):
        tag, at = _number(message, at, end)
        kind = tag & 7
        if kind == 2:
            size, at = _number(message, at, end)
            if not at <= at + size <= end:
                return
            yield tag >> 3, at, at + size
            at += size
        elif kind == 0:
            _, at = _number(message, at, end)
        else:
            at += {1: 8, 5: 4}.get(kind, end)
        if at >= end:
            return
    raise InvalidRequest(f"the message has over {MAX_FIELDS:,} fields; send token ids packed")


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
