"""Keep-alive comments on a stream that sends nothing: `[proxy] stream_keepalive_s`.

    waiting ─ quiet ─► open: our head, and a comment per quiet time
       │                 │ the worker's stream: its events follow          ─► streaming
       │ worker's head   │ an error, ours or the worker's: an error event  ─► over
       ▼
    passed on: a stream gets comments between events; any other answer gets none

Proxies and browsers cut a connection without a byte for some 60 s, which a long prompt or a queue may take. A
comment is a line that readers of event streams skip. It goes out only between two events.
"""

import asyncio
from typing import Final

from gateway.apis.error_format import event_of, event_of_answer, is_anthropic
from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.core.route_table import GENERATE, RouteKind
from gateway.http.headers import is_event_stream
from gateway.http.messages import Header, ResponseHead
from gateway.http.sse import ends_between_events
from gateway.server.responder import Responder

COMMENT: Final = b": keep-alive\n\n"
MAX_BODY_BYTES: Final = 64 << 10
"""Size of a worker's error that becomes an event; engines' errors have some hundred bytes."""

_HEAD: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def takes_comments(request: InferenceRequest) -> bool:
    """True for streams of server-sent events, which SGLang's /generate has too; those of other routes that
    are passed on unread may be anything."""
    return request.stream and (request.kind is not RouteKind.PASS or request.path == GENERATE)


class KeptAliveResponder(Responder):
    """Response to a streaming request that has a byte at least every `quiet_s` seconds. It opens the stream
    itself where the worker's head has not come by then."""

    __slots__ = (
        "_loop",
        "_quiet_s",
        "_request_id",
        "_timer",
        "_sent_s",
        "_is_open",
        "_is_between_events",
        "_status",
        "_body",
    )

    def __init__(
        self, responder: Responder, request_id: bytes, quiet_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Take the place of a responder that has sent nothing, with its headers; `loop` has the clock."""
        super().__init__(responder._connection, responder._request, responder._standing)
        self.more_headers = responder.more_headers  # the same list: admission control may still change it
        self._loop = loop
        self._quiet_s = quiet_s
        self._request_id = request_id
        self._sent_s = loop.time()
        self._is_open = False
        self._is_between_events = True
        self._status = 0
        self._body: bytearray | None = None  # of a worker's answer that is no stream, once ours is open
        self._timer: asyncio.TimerHandle | None = loop.call_later(quiet_s, self._on_timer)

    def head(self, head: ResponseHead) -> None:
        is_stream = head.status == 200 and is_event_stream(head)
        if not self._is_open:
            if not is_stream:
                self._stop()
            return super().head(head)
        self.has_begun = True
        if not is_stream:
            self._status, self._body = head.status, bytearray()
        return None

    def data(self, data: bytes) -> None:
        if self._body is not None:
            self._body += data[: MAX_BODY_BYTES - len(self._body)]
            return
        if data:
            self._sent_s = self._loop.time()
            self._is_between_events = ends_between_events(data, self._is_between_events)
        super().data(data)

    def end(self, data: bytes = b"") -> None:
        self._stop()
        if self._body is not None:
            self.data(data)
            body, self._body = bytes(self._body), None
            named = self._request_id.decode("latin-1")
            data = event_of_answer(self._status, body, self._request.path, named)
        super().end(data)

    def fail(self, error: GatewayError, headers: list[Header] | None = None) -> None:
        self._stop()
        if self._is_open:
            return super().end(event_of(error, self._request.path, self._request_id.decode("latin-1")))
        return super().fail(error, headers)

    def abort(self) -> None:
        self._stop()
        super().abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        """Send a comment if it is due; lazy: a stream that moves costs no timer per event."""
        self._timer = None
        if self._connection.peername is None:
            return  # the client is gone
        wait_s = self._sent_s + self._quiet_s - self._loop.time()
        if wait_s <= 0:
            self._comment()
            wait_s = self._quiet_s
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _comment(self) -> None:
        if self.client_is_full or not self._is_between_events:
            return
        if not self.has_begun and not self._is_open:
            named = [(b"x-request-id", self._request_id)]
            if is_anthropic(self._request.path):
                named.append((b"request-id", self._request_id))
            super().head(ResponseHead(200, [*_HEAD, *named]))
            self._is_open, self.has_begun = True, False  # an error can still be answered, as an event
        self._sent_s = self._loop.time()
        super().data(COMMENT)
