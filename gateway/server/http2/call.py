"""Calls of gRPC: each a stream of HTTP/2 that a handler answers."""

from typing import TYPE_CHECKING, Protocol

from gateway.http.messages import Header
from gateway.server.http2.grpc_framing import (
    DEADLINE_EXCEEDED,
    RESPONSE_HEAD,
    MessageReader,
    prefix,
    trailers,
)
from gateway.server.http2.service import StreamHandler
from gateway.server.http2.stream import Http2Stream

if TYPE_CHECKING:
    from gateway.server.http2.grpc_connection import GrpcConnection


class Timer(Protocol):
    def cancel(self) -> None: ...


class Call:
    """A `GrpcStream`. `handler` is None before it is made, and again once the call is over: handlers refer to
    calls, and such cycles are collected late."""

    __slots__ = (
        "path",
        "headers",
        "stream",
        "handler",
        "reader",
        "timer",
        "is_over",
        "_connection",
        "_has_sent",
    )

    def __init__(
        self,
        connection: "GrpcConnection",
        stream: Http2Stream,
        path: bytes,
        headers: list[Header],
        max_message_bytes: int,
    ) -> None:
        self.path = path
        self.headers = headers
        self.stream = stream
        self.handler: StreamHandler | None = None
        self.reader = MessageReader(max_message_bytes)
        self.timer: Timer | None = None
        self.is_over = False
        self._connection = connection
        self._has_sent = False

    def __repr__(self) -> str:
        return f"Call({self.path!r}, {self.stream}, over={self.is_over})"

    def send(self, message: bytes) -> None:
        if not self.is_over:
            self._has_sent = True
            http2 = self._connection.http2
            http2.send(self.stream, prefix(message))
            if message:
                http2.send(self.stream, message)
            self._connection.has_output()

    def finish(self, status: int, message: str = "") -> None:
        """End the stream behind its messages; only the first call counts."""
        if not self.is_over:
            self.close()
            block = trailers(status, message)
            self._connection.http2.end(self.stream, block if self._has_sent else RESPONSE_HEAD + block)
            self._connection.has_output()

    def abort(self, why: str) -> None:
        """The stream is gone: nothing is sent any more."""
        if not self.is_over:
            handler = self.handler
            self.close()
            if handler is not None:
                handler.aborted(why)

    def late(self) -> None:
        """The client's deadline has passed."""
        if not self.is_over:
            handler = self.handler
            self.finish(DEADLINE_EXCEEDED, "deadline exceeded")
            if handler is not None:
                handler.aborted("deadline exceeded")

    def close(self) -> None:
        """Let go of everything that the call holds."""
        self.is_over = True
        self.handler = None
        self._connection.hold(-self.reader.num_held)
        self.reader.drop()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
