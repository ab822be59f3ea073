"""Events of an HTTP/2 connection. Plain classes, since frozen ones cost ten times as much to make."""

from gateway.server.http2.request_head import StreamHead
from gateway.server.http2.stream import Http2Stream


class RequestBegan:
    __slots__ = ("stream", "head", "is_end")

    def __init__(self, stream: Http2Stream, head: StreamHead, is_end: bool) -> None:
        self.stream = stream
        self.head = head
        self.is_end = is_end

    def __repr__(self) -> str:
        return f"RequestBegan({self.stream}, {self.head}, end={self.is_end})"


class DataCame:
    __slots__ = ("stream", "data", "is_end")

    def __init__(self, stream: Http2Stream, data: bytes, is_end: bool) -> None:
        self.stream = stream
        self.data = data
        self.is_end = is_end

    def __repr__(self) -> str:
        return f"DataCame({self.stream}, {len(self.data)} bytes, end={self.is_end})"


class StreamGone:
    """The peer reset a stream, or broke a rule in it."""

    __slots__ = ("stream", "why")

    def __init__(self, stream: Http2Stream, why: str) -> None:
        self.stream = stream
        self.why = why

    def __repr__(self) -> str:
        return f"StreamGone({self.stream}, {self.why!r})"


Event = RequestBegan | DataCame | StreamGone
