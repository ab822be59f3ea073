"""gRPC over one HTTP/2 connection, without I/O: its streams become calls of services.

request is not POST             HTTP 405           compressed message       UNIMPLEMENTED
content-type is not gRPC        HTTP 415           message too long         RESOURCE_EXHAUSTED
unknown path                    UNIMPLEMENTED      end within a message     INTERNAL
grpc-timeout over               DEADLINE_EXCEEDED  handler raises           INTERNAL
message comes too slowly        DEADLINE_EXCEEDED  no memory for messages   RESOURCE_EXHAUSTED

A frame may hold thousands of messages, each a request: they are handed out in turns of a slice.
"""

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from gateway.http.messages import Header
from gateway.runtime.work_slices import SLICE_S
from gateway.server.body_budget import BodyBudget
from gateway.server.http2.connection import Http2Connection
from gateway.server.http2.events import DataCame, RequestBegan, StreamGone
from gateway.server.http2.frames import INTERNAL_ERROR, Http2Error
from gateway.server.http2.grpc_framing import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    RESPONSE_HEAD,
    UNIMPLEMENTED,
    GrpcError,
    MessageReader,
    http_error,
    prefix,
    timeout_s,
    trailers,
)
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.request_head import StreamHead
from gateway.server.http2.service import Services, StreamHandler
from gateway.server.http2.stream import Http2Stream

log = logging.getLogger("kvgate.grpc")


class Timer(Protocol):
    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]

MAX_SHOWN_PATH: Final = 200


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
            connection = self._connection
            connection.http2.send(self.stream, prefix(message), message)
            if not connection.is_receiving:
                connection.on_output()

    def finish(self, status: int, message: str = "") -> None:
        """End the stream behind its messages; only the first call counts."""
        if not self.is_over:
            self.close()
            block = trailers(status, message)
            connection = self._connection
            connection.http2.end(self.stream, block if self._has_sent else RESPONSE_HEAD + block)
            if not connection.is_receiving:
                connection.on_output()

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
        if self.reader.num_held:
            self._connection.hold(-self.reader.num_held)
            self.reader.drop()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class GrpcConnection:
    """Calls of one connection. `on_output` notifies the shell of output that comes while nothing
    `is_receiving`."""

    # fmt: off
    __slots__ = (
        "http2", "num_partial", "has_rest", "is_receiving", "on_output", "_services", "_limits", "_later",
        "_bodies", "_timer", "_messages", "_call", "_is_end",
    )
    # fmt: on

    def __init__(
        self,
        services: Services,
        limits: Http2Limits,
        bodies: BodyBudget,
        later: Later,
        on_output: Callable[[], None],
    ) -> None:
        """Start a connection. Incomplete messages count in `bodies`; `later` calls a function after a number
        of seconds."""
        self.http2 = Http2Connection(limits, RESPONSE_HEAD)
        self.num_partial = 0
        self._services = services
        self._limits = limits
        self._bodies = bodies
        self._later = later
        self.has_rest = False
        self.is_receiving = False
        self.on_output = on_output
        self._messages: deque[bytes] = deque()  # of a frame with several; they are their call's
        self._call: Call | None = None
        self._is_end = False
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"GrpcConnection({self.http2}, {self.num_partial} bytes of messages)"

    def receive(self, data: bytes, now: float) -> None:
        """Take received bytes, and hand out what they bring for a slice; what that causes is in `http2.take`
        afterwards."""
        self.http2.feed(data, now)
        self.hand_out()

    def hand_out(self) -> None:
        """Hand out what was received, for a slice; what `has_rest` then waits for the next call."""
        end = monotonic() + SLICE_S
        self.has_rest = False
        self.is_receiving = True
        try:
            while self._step():
                if (self._call is not None or self.http2.has_bytes) and monotonic() > end:
                    self.has_rest = True
                    break
        finally:
            self.is_receiving = False
        if self.http2.fault is not None and not self.has_rest:
            self.abort(f"connection error: {self.http2.fault}")

    def abort(self, why: str) -> None:
        """End all calls."""
        for stream in list(self.http2.streams.values()):
            call = stream.owner
            stream.owner = None
            if isinstance(call, Call):
                self._guarded_abort(call, why)

    def close(self, why: str) -> None:
        """The connection is lost: end its calls, and let go of everything."""
        if self.http2.fault is None:
            self.http2.fault = Http2Error(INTERNAL_ERROR, why)
        self.has_rest = False
        self._call = None
        self._messages.clear()
        self.abort(why)
        self.http2.close()
        self.on_output = _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hold(self, num_bytes: int) -> None:
        """Count bytes of incomplete messages; fewer than none are let go."""
        self.num_partial += num_bytes
        self._bodies.num_bytes += num_bytes

    def _step(self) -> bool:
        """Hand out a message that waits, or take the next frame; False once nothing is left."""
        if self._call is not None:
            self._take_waiting(self._call)
            return True
        http2 = self.http2
        if not http2.advance():
            return False
        event = http2.event
        if isinstance(event, DataCame):
            call = event.stream.owner
            if isinstance(call, Call) and not call.is_over:
                self._take_data(call, event)
        elif isinstance(event, RequestBegan):
            self._begin(event.stream, event.head)
            if event.is_end:
                self._end(event.stream)
        elif isinstance(event, StreamGone):
            call = event.stream.owner
            event.stream.owner = None
            if isinstance(call, Call):
                self._guarded_abort(call, event.why)
        return True

    def _take_waiting(self, call: Call) -> None:
        """Hand out the next message of a frame with several, and behind the last the end of its stream."""
        self._take_message(call, self._messages.popleft())
        if call.is_over:
            self._messages.clear()
        if not self._messages:
            self._call = None
            if self._is_end:
                self._end(call.stream)

    def _begin(self, stream: Http2Stream, head: StreamHead) -> None:
        method, path = head.method, head.path
        if method != b"POST" or not head.content_type.startswith(b"application/grpc"):
            return self.http2.end(stream, http_error(415 if method == b"POST" else 405))
        call = Call(self, stream, path, head.headers, self._limits.max_message_bytes)
        stream.owner = call
        service = self._services.get(path)
        if service is None:
            known = path[:MAX_SHOWN_PATH].decode("latin-1")
            return call.finish(UNIMPLEMENTED, f"there is no method {known}")
        try:
            if head.timeout:
                call.timer = self._later(timeout_s(head.timeout), call.late)
            call.handler = service(call)
            if call.is_over:
                call.handler = None
        except Exception as error:  # noqa: BLE001  a bug in one stream must not end the connection's others
            self._failed(call, error)
        return None

    def _take_data(self, call: Call, event: DataCame) -> None:
        message = call.reader.only_message(event.data)
        if message is not None:
            self._take_message(call, message)
        elif event.data and not self._take_parts(call, event):
            return
        if event.is_end:
            self._end(event.stream)

    def _take_parts(self, call: Call, event: DataCame) -> bool:
        """Take data with parts of messages, or several; False if these wait, or after a fault."""
        try:
            messages = self._cut(call.reader, event.data)
            if call.reader.num_held:
                self._check_room()
        except GrpcError as error:
            self._failed(call, error)
            return False
        if len(messages) > 1:
            self._call, self._is_end = call, event.is_end
            self._messages.extend(messages)
            return False
        for message in messages:
            self._take_message(call, message)
        return True

    def _take_message(self, call: Call, message: bytes) -> None:
        if call.handler is not None:
            try:
                call.handler.message(message)
            except Exception as error:  # noqa: BLE001  see above
                self._failed(call, error)

    def _cut(self, reader: MessageReader, data: bytes) -> list[bytes]:
        num_before = reader.num_held
        try:
            return reader.feed(data)
        finally:
            self.hold(reader.num_held - num_before)

    def _check_room(self) -> None:
        """Keep an incomplete message, or raise GrpcError."""
        bodies = self._bodies
        if self.num_partial > self._limits.max_partial_bytes:
            raise GrpcError(RESOURCE_EXHAUSTED, "too many incomplete messages in one connection")
        if bodies.num_bytes > bodies.max_bytes:
            raise GrpcError(RESOURCE_EXHAUSTED, bodies.refusal().message)
        if self._timer is None:
            self._timer = self._later(self._limits.message_timeout_s, self._end_stuck)

    def _end_stuck(self) -> None:
        """End the calls with messages that have not grown enough since the last look."""
        limits = self._limits
        self._timer = None
        for stream in list(self.http2.streams.values()):
            call = stream.owner
            if isinstance(call, Call) and call.reader.is_stuck(
                limits.message_timeout_s * limits.min_message_rate
            ):
                self._failed(call, GrpcError(DEADLINE_EXCEEDED, "the rest of a message arrives too slowly"))
        if self.num_partial:
            self._timer = self._later(limits.message_timeout_s, self._end_stuck)

    def _end(self, stream: Http2Stream) -> None:
        """The client has sent everything."""
        call = stream.owner
        if not isinstance(call, Call) or call.is_over:
            return
        if call.reader.num_held:
            return self._failed(call, GrpcError(INTERNAL, "the stream ended within a message"))
        handler = call.handler
        if handler is not None:
            try:
                handler.half_closed()
            except Exception as error:  # noqa: BLE001  see above
                self._failed(call, error)
        return None

    def _failed(self, call: Call, error: Exception) -> None:
        """A message was refused, or a handler raised."""
        handler = call.handler
        if isinstance(error, GrpcError):
            call.finish(error.status, error.message)
        else:
            log.error("%s: handler failed; stream ended", call.path.decode("latin-1"), exc_info=error)
            call.finish(INTERNAL, "internal error")
        if handler is not None:
            try:
                handler.aborted(str(error))
            except Exception:
                log.exception("%s: handler failed twice", call.path.decode("latin-1"))

    def _guarded_abort(self, call: Call, why: str) -> None:
        try:
            call.abort(why)
        except Exception:
            log.exception("%s: handler failed at its end", call.path.decode("latin-1"))


def _ignore() -> None: ...
