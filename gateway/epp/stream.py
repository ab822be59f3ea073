"""Services of gRPC, as `server.http2` carries them: a handler for each stream.

The server calls a handler as events arrive, and the handler calls its stream, at once or later. A unary call
is a stream with one message each way: `unary` makes such a service.
"""

from collections.abc import Callable

from gateway.server.http2.service import GrpcStream, Service, Services, StreamHandler

__all__ = ["Answer", "GrpcStream", "Service", "Services", "StreamHandler", "UnaryHandler", "unary"]

OK, INVALID_ARGUMENT, UNAVAILABLE = 0, 3, 14


Answer = tuple[int, bytes]
"""gRPC status, and the message where it is OK, else the error in UTF-8."""


class UnaryHandler:
    """Handler of a unary call that is answered at once."""

    __slots__ = ("_stream", "_answer", "_is_over")

    def __init__(self, stream: GrpcStream, answer: Callable[[bytes], Answer]) -> None:
        self._stream, self._answer = stream, answer
        self._is_over = False

    def message(self, message: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        status, answer = self._answer(message)
        if status != OK:
            return self._stream.finish(status, answer.decode())
        self._stream.send(answer)
        return self._stream.finish(OK)

    def half_closed(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._stream.finish(INVALID_ARGUMENT, "the method accepts one message per call")

    def aborted(self, why: str) -> None:
        self._is_over = True


def unary(answer: Callable[[bytes], Answer]) -> Service:
    """Return the service of a unary call: `answer` gets its message."""
    return lambda stream: UnaryHandler(stream, answer)
