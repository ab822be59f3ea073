"""Bounds on a message of the decision service, read off its bytes before protobuf makes objects of them."""

from typing import Final

from gateway.core.errors import InvalidRequest
from gateway.epp.message_fields import FREE_BYTES, MAX_BESIDE_BYTES, fields_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb

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
    within = () if kind is pb.DecideRequest else (_DECIDE,)
    fields = fields_of(message, within) if kind is not pb.ReportRequest else ()
    for number, start, end in fields:
        if number == _BODY:
            num_beside -= end - start
        elif number == _TOKEN_IDS:
            num_beside -= end - start
            num_ids += end - start - len(message[start:end].translate(None, _LAST_OCTETS))
    if num_ids > MAX_TOKEN_IDS:
        raise InvalidRequest(
            f"at most {MAX_TOKEN_IDS:,} token ids are accepted; send a longer prompt as 'body'"
        )
    if num_beside > MAX_BESIDE_BYTES:
        raise InvalidRequest(
            f"at most {MAX_BESIDE_BYTES:,} bytes are accepted in addition to the body and the token ids"
        )
