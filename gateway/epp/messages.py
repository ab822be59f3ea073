"""Answers to Envoy as messages of ext_proc; the contract is `proto/kvgate/v1/ext_proc.proto`."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

from gateway.epp import wire
from gateway.http.messages import Header

DESTINATION: Final = "x-gateway-destination-endpoint"
LB_NAMESPACE: Final = "envoy.lb"

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


def picked_head(
    endpoint: str, changed: Iterable[Header], removed: Iterable[bytes], *, is_body: bool, body: bytes | None
) -> bytes:
    """The message with the destination, in header and metadata; `is_body` where it answers a buffered body,
    which `body` replaces."""
    tag = wire.REQUEST_BODY if is_body else wire.REQUEST_HEADERS
    change, metadata = _destination(endpoint)
    return wire.picked(tag, change + wire.mutation(changed, removed), body, metadata)


@lru_cache(maxsize=1024)
def _destination(endpoint: str) -> tuple[bytes, bytes]:
    """Return the header change and the metadata that name an endpoint: each is picked again and again."""
    address = endpoint.encode()
    metadata = wire.dynamic_metadata(LB_NAMESPACE.encode(), DESTINATION.encode(), address)
    return wire.mutation([(DESTINATION.encode(), address)], ()), metadata


def head(*, is_response: bool, changed: Sequence[Header] = (), removed: Sequence[bytes] = ()) -> bytes:
    """An answer to headers that lets them pass, with these changes."""
    tag = wire.RESPONSE_HEADERS if is_response else wire.REQUEST_HEADERS
    return wire.headers(tag, changed, removed) if changed or removed else wire.passed(tag)


def body(data: bytes | None, *, is_response: bool) -> bytes:
    """An answer to a buffered body or to one streamed piece; None: it passes unchanged."""
    tag = wire.RESPONSE_BODY if is_response else wire.REQUEST_BODY
    return wire.passed(tag) if data is None else wire.body(tag, data)


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
    return wire.passed(wire.RESPONSE_TRAILERS if is_response else wire.REQUEST_TRAILERS)


def immediate(status: int, headers: Iterable[Header], content: bytes, details: str) -> bytes:
    """An answer by Envoy itself, in place of a worker's. `details` appear in Envoy's access log."""
    return wire.immediate(status, headers, content, details.encode())
