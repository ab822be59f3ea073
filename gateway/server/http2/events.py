"""Events of an HTTP/2 connection, and of the gRPC on it."""

from dataclasses import dataclass

from gateway.http.messages import Header
from gateway.server.http2.stream import Http2Stream


@dataclass(frozen=True, slots=True)
class RequestBegan:
    stream: Http2Stream
    headers: list[Header]
    is_end: bool


@dataclass(frozen=True, slots=True)
class DataCame:
    stream: Http2Stream
    data: bytes
    is_end: bool


@dataclass(frozen=True, slots=True)
class StreamGone:
    """The peer reset a stream, or broke a rule in it."""

    stream: Http2Stream
    why: str


@dataclass(frozen=True, slots=True)
class MessageCame:
    """A message of gRPC is whole."""

    stream: Http2Stream
    message: bytes


Event = RequestBegan | DataCame | StreamGone
