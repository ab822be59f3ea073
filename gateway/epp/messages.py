"""Messages of ext_proc as values and back; the contract is `proto/kvgate/v1/ext_proc.proto`."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from gateway.core.errors import InvalidRequest
from gateway.epp import wire
from gateway.epp.message_fields import FREE_BYTES, MAX_BESIDE_BYTES, MAX_FIELDS, fields_of
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb

DESTINATION: Final = "x-gateway-destination-endpoint"
LB_NAMESPACE: Final = "envoy.lb"
_DESTINATION: Final = DESTINATION.encode()
_NAMESPACE: Final = LB_NAMESPACE.encode()
_BODIES: Final = (
    pb.ProcessingRequest.REQUEST_BODY_FIELD_NUMBER,
    pb.ProcessingRequest.RESPONSE_BODY_FIELD_NUMBER,
)
_BODY: Final[int] = pb.HttpBody.BODY_FIELD_NUMBER
OVERWRITE: Final = 2
"""`append_action`: the header is replaced, or added where it is missing."""

MAX_PIECE_BYTES: Final = 62_000
"""Largest piece of a body in one message: some data planes accept 64 KiB per message, with its frame."""


class BodyMode(IntEnum):
    """How Envoy sends a body, as `protocol_config` announces it."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


INVALID_ARGUMENT: Final = 3
"""gRPC status of a message that the protocol does not allow here."""


class ProtocolError(Exception):
    """A message that ends the stream with a gRPC status."""

    def __init__(self, message: str, status: int = INVALID_ARGUMENT) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def decode(data: bytes) -> pb.ProcessingRequest:
    """Decode a message of Envoy. Raises ProtocolError, also for over 128 KiB beside a body."""
    try:
        if len(data) > FREE_BYTES:
            _check_bounds(data)
        message: pb.ProcessingRequest = pb.ProcessingRequest.FromString(data)
    except DecodeError as exc:
        raise ProtocolError(f"the message is not a ProcessingRequest: {exc}") from exc
    except InvalidRequest as error:
        raise ProtocolError(error.message) from error
    return message


def _check_bounds(data: bytes) -> None:
    num_beside = len(data)
    for number, start, end in fields_of(data, _BODIES):
        if number == _BODY:
            num_beside -= end - start
    if num_beside > MAX_BESIDE_BYTES:
        raise InvalidRequest(f"at most {MAX_BESIDE_BYTES:,} bytes are accepted in addition to a body")


def headers_of(message: pb.HttpHeaders) -> list[Header]:
    """Headers with pseudo-headers, in order; names as Envoy sends them, in lower case. Raises ProtocolError
    for over 4,096."""
    if len(message.headers.headers) > MAX_FIELDS:
        raise ProtocolError(f"at most {MAX_FIELDS:,} headers are accepted")
    return [(each.key.encode(), each.raw_value or each.value) for each in message.headers.headers]


def metadata_of(message: pb.ProcessingRequest, namespace: str, key: str) -> object | None:
    """A value of dynamic metadata; None where Envoy does not forward it."""
    known = message.metadata_context.filter_metadata
    if namespace not in known or key not in known[namespace]:
        return None
    value: object = known[namespace][key]
    return value


def picked_head(
    endpoint: str, changed: Iterable[Header], removed: Iterable[bytes], *, is_body: bool, body: bytes | None
) -> bytes:
    """The message with the destination, in header and metadata; `is_body` where it answers a buffered body,
    which `body` replaces."""
    tag = wire.REQUEST_BODY if is_body else wire.REQUEST_HEADERS
    address = endpoint.encode()
    changes = wire.mutation([(_DESTINATION, address), *changed], removed)
    return wire.picked(tag, changes, body, _NAMESPACE, _DESTINATION, address)


def head(*, is_response: bool, changed: Iterable[Header] = (), removed: Iterable[bytes] = ()) -> bytes:
    """An answer to headers that lets them pass, with these changes."""
    return wire.headers(wire.RESPONSE_HEADERS if is_response else wire.REQUEST_HEADERS, changed, removed)


def body(data: bytes | None, *, is_response: bool) -> bytes:
    """An answer to a buffered body or to one streamed piece; None: it passes unchanged."""
    return wire.body(wire.RESPONSE_BODY if is_response else wire.REQUEST_BODY, data)


def pieces(data: bytes, *, is_response: bool, is_end: bool) -> list[bytes]:
    """A body, or part of one, in FULL_DUPLEX_STREAMED; only the last piece has `end_of_stream`."""
    tag, size = wire.RESPONSE_BODY if is_response else wire.REQUEST_BODY, len(data)
    if 0 < size <= MAX_PIECE_BYTES:
        return [wire.streamed(tag, data, is_end)]
    return [
        wire.streamed(tag, data[start : start + MAX_PIECE_BYTES], is_end and start + MAX_PIECE_BYTES >= size)
        for start in range(0, size or is_end, MAX_PIECE_BYTES)
    ]


def trailers(*, is_response: bool) -> bytes:
    answer = pb.ProcessingResponse()
    (answer.response_trailers if is_response else answer.request_trailers).SetInParent()
    return bytes(answer.SerializeToString())


def immediate(status: int, headers: Iterable[Header], content: bytes, details: str) -> bytes:
    """An answer by Envoy itself, in place of a worker's. `details` appear in Envoy's access log."""
    answer = pb.ProcessingResponse()
    reply = answer.immediate_response
    reply.status.code = status
    reply.body = content
    reply.details = details
    _change(reply.headers, headers, ())
    return bytes(answer.SerializeToString())


def _change(mutation: pb.HeaderMutation, changed: Iterable[Header], removed: Iterable[bytes]) -> None:
    for name, value in changed:
        one = mutation.set_headers.add()
        one.append_action = OVERWRITE
        one.header.key, one.header.raw_value = name.decode("latin-1"), value
    mutation.remove_headers.extend([name.decode("latin-1") for name in removed])
