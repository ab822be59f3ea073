"""Client connections: HTTP/1.1 as protocols on the event loop.

A connection parses requests (body complete, up to a limit), answers them in order, and hands each to `handle`
with a Responder. Exchanges are notified when the client's socket is full, free again, or gone. Limits and
deadlines apply before anything is handed on.

    head ──► body ──► queued ──► answering ──► head (kept alive) or closed
      │ 408 431 400     │ 413 400    │ client disconnected: the exchange is cancelled
"""

import asyncio
from collections import deque
from collections.abc import Callable, MutableSet
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools

from gateway.core.decode_errors import LARGE
from gateway.core.errors import (
    GatewayError,
    HeadTooLarge,
    InvalidRequest,
    NotSupported,
    RequestTimeout,
    VersionNotSupported,
)
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.http.framing import HttpLimits, check_request
from gateway.http.messages import Header, HttpRequest
from gateway.http.upgrade import HTTP2_REFUSAL, has_body, offers_websocket, without_offer
from gateway.runtime.deadline_timer import LazyTimer
from gateway.runtime.paced_reads import SLICE_BYTES, PacedReads
from gateway.server.body_budget import BodyBudget, Intake
from gateway.server.responder import Exchange, Handle, Responder, request_id
from gateway.server.sockets import reset_at_close
from gateway.server.upgrade_buffer import UpgradeBuffer

MAX_QUEUED_BYTES: Final = 1 << 20
"""Bodies of pipelined requests that a connection may hold before reading pauses."""
MAX_UNREAD_BYTES: Final = 256 << 10
"""Answers that a client has not read before those to its next requests wait."""
LINGER_S: Final = 2.0
"""Time for which a rejected client's bytes are read and dropped before its connection is closed."""
MAX_DROPPED_BYTES: Final = 256 << 20
"""Bytes behind a rejection or the end of a tunnel that are read and dropped, then the connection is aborted:
several times what may have been under way, a body over the limit or full sockets."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Rejected request with its error; `request` is as much of it as was parsed."""

    error: GatewayError
    request: HttpRequest


OnRefused = Callable[[HttpRequest, GatewayError], None]


class ClientConnection(asyncio.Protocol):
    """Connection of one client, in `registry` while it is open (any set, also a counting one); `on_refused`
    gets each request that was answered here and not handed on, as far as it was parsed, and its error."""

    def __init__(
        self,
        handle: Handle,
        limits: HttpLimits,
        registry: MutableSet["ClientConnection"],
        on_refused: OnRefused = lambda request, error: None,
        bodies: BodyBudget | None = None,
        cross_origins: CrossOriginPolicy | None = None,
    ) -> None:
        self._handle = handle
        self._on_refused = on_refused
        self._limits, self._cross_origins = limits, cross_origins
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._queue: deque[HttpRequest | _Refusal] = deque()
        self._exchange: Exchange | None = None
        self._is_answering = self._is_starting = False
        self._address: str | None = None
        self.source: object = None  # the client's address, where a proxy in front of us sends it
        self._is_refusing = False  # a broken request was queued: nothing behind it is read
        self._upgrade_buffer: UpgradeBuffer | None = None  # set where an upgrade request was queued
        self._is_closing = self._is_lingering = False
        self._num_dropped = 0
        self._reads: PacedReads | None = None
        self._has_spoken = False  # HTTP/1.1, so that no HTTP/2 preface follows
        self._has_body_in_read = False
        self._is_stopping = self._is_leaving = False
        self.is_full = False
        self._timer = LazyTimer(self._loop, self._on_due)
        self._body_began = 0.0
        self._headers: list[Header] = []
        self._bodies = BodyBudget() if bodies is None else bodies
        self._intake = Intake(self._bodies, limits.max_body_bytes)
        self._begin_message()
        self._in_head = self._is_receiving = False

    def __repr__(self) -> str:
        state = "answering" if self._is_answering else "reading" if self._is_busy() else "idle"
        return f"ClientConnection({state}, queued={len(self._queue)})"

    # transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reads = PacedReads(self._transport, self._loop, self._read)
        # A slow reader costs only what one read from the worker brought (up to 250 KB) and the client's
        # socket did not take. Not 0: a TLS transport would be full while empty.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._registry.add(self)
        self._set_deadline(self._limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._upgrade_buffer = None
        if self._reads:
            self._reads.close()
        self._parser = (
            None  # it refers to our methods: a cycle that is never collected (runtime/gc_policy.py)
        )
        self._registry.discard(self)
        self._intake.drop()
        for item in self._queue:
            self._bodies.let_go(item if isinstance(item, HttpRequest) else item.request)
        self._queue.clear()
        self._timer.close()
        if exchange := self._exchange:
            self._exchange = None
            exchange.client_gone()

    def pause_writing(self) -> None:
        self.is_full = True
        if self._exchange:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        self.is_full = False
        self._hasten()
        if self._exchange:
            self._exchange.client_free()
        elif self._queue:
            self._answer_next()

    def data_received(self, data: bytes) -> None:
        if self._reads and (len(data) > SLICE_BYTES or self._reads.has_rest) and not self._is_body(data):
            return self._reads.take(data)
        return self._read(data)

    def _read(self, data: bytes) -> None:
        if self._is_refusing or self._is_closing:
            return self._upgrade_buffer.take(data) if self._upgrade_buffer else self._drop(data)
        self._has_body_in_read = False
        try:
            self._feed(data)
        except httptools.HttpParserError as exc:
            self._refuse_malformed(exc)
        else:
            self._check_framing_size(len(data))
        return None

    def _drop(self, data: bytes) -> None:
        self._num_dropped += len(data)
        if self._num_dropped > MAX_DROPPED_BYTES and self._transport:
            self._transport.abort()

    def _is_body(self, data: bytes) -> bool:
        """Return True for a read within a body of announced length: one piece, whatever it holds."""
        if self._is_receiving and not self._in_head and self._reads and not self._reads.has_rest:
            for name, value in self._headers:
                if name == b"content-length":
                    return int(value) - self._intake.num_bytes >= len(data)
        return False

    def eof_received(self) -> bool:
        return False  # a client that closes its side is gone: the transport closes and notifies us

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:
                data = self._without_upgrade(data[exc.args[0] :])

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Ignore offers of another protocol (RFC 9110, 7.8), except WebSockets.

        The parser takes the bytes behind such a head for that protocol, so a new one reads the head without
        the offer, then the rest. A WebSocket request is the last one on its connection.
        """
        method, version, headers = self._parser.get_method(), self._parser.get_http_version(), self._headers
        if offers_websocket(headers):
            rest += self._reads.take_rest() if self._reads else b""
            self._upgrade_buffer, rest = UpgradeBuffer(self, rest), b""
        if method == b"CONNECT" or (self._upgrade_buffer and has_body(headers)):
            self._refuse(NotSupported("CONNECT and WebSocket requests with a body are not supported"))
            return b""
        self._parser = httptools.HttpRequestParser(self)
        return without_offer(method, self._target, version, headers) + rest

    def _refuse_malformed(self, exc: httptools.HttpParserError) -> None:
        if self._parser.get_method() != b"PRI" or self._has_spoken:
            return self._refuse(InvalidRequest(f"malformed HTTP request: {exc}"))
        self._is_refusing = True
        refused = HttpRequest("PRI", b"*", [], keep_alive=False)
        refused.client = self._client()
        self._on_refused(refused, VersionNotSupported("HTTP/2 is not supported; use HTTP/1.1"))
        self.write(HTTP2_REFUSAL)
        return self._close()

    # parser ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_refusing:
            return
        self._begin_message()
        self._set_deadline(self._limits.head_timeout_s)

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._in_head:  # else it is a trailer, which must not count as a header (RFC 9110, 6.5.1)
            self._headers.append((name.lower(), value))
        elif self._head_bytes > self._limits.max_head_bytes:
            self._refuse(self._head_too_large())

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._has_spoken = True
        if self._is_refusing or self._parser.should_upgrade():
            return None  # this head comes again, see _without_upgrade
        self._restart_body_clock()
        limits, version = self._limits, self._parser.get_http_version()
        if self._head_bytes + len(self._target) > limits.max_head_bytes:
            return self._refuse(self._head_too_large())
        if len(self._headers) > limits.max_headers:
            return self._refuse(HeadTooLarge(f"the request has over {limits.max_headers} headers"))
        try:
            expects = check_request(version, self._target, self._headers, limits.max_body_bytes)
            self._intake.expect(self._headers)
        except GatewayError as exc:
            return self._refuse(exc)
        if expects:
            self._owes_continue = True  # after the answers to earlier requests
            self._answer_next()
        return None

    def on_body(self, body: bytes) -> None:
        if self._is_refusing:
            return None
        if error := self._intake.add(body):
            return self._refuse(error)
        self._has_body_in_read = True
        self._fed_between = 0
        left_s = self._limits.body_left_s(self._loop.time(), self._body_began, self._intake.num_bytes)
        self._set_deadline(left_s or 0.001)
        if self._intake.num_bytes >= LARGE and self._reads:
            self._reads.yield_to_others()
        return None

    def on_message_complete(self) -> None:
        if self._is_refusing or self._parser.should_upgrade():
            return
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            target=self._target,
            headers=self._headers,
            is_http10=self._parser.get_http_version() in ("0.9", "1.0"),
            keep_alive=self._parser.should_keep_alive() and not self._upgrade_buffer,
            is_upgrade=self._upgrade_buffer is not None,
        )
        request.client = self._client()
        if error := self._intake.hand_to(request):
            return self._refuse(error)
        self._is_receiving = self._owes_continue = False
        self._is_refusing = self._upgrade_buffer is not None
        self._has_body_in_read = True
        self._queue.append(request)
        self._set_deadline(0)
        if self._has_too_much_queued():
            self.pause_reading()
        self._answer_next()

    # answers -----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def abort(self, *, with_reset: bool = False) -> None:
        self._exchange = None
        if not self._transport:
            return
        if with_reset:
            reset_at_close(self._transport)
        self._transport.abort()

    def leave_http(self, receive: Callable[[bytes], None]) -> None:
        assert self._upgrade_buffer is not None, "it was not offered"
        self._upgrade_buffer.agreed(receive)

    def answered(self, keep_alive: bool) -> None:
        self._exchange = None
        self._is_answering = False
        if not keep_alive or self._is_stopping:
            return self._close()
        if not self._is_receiving and not self._queue:
            self._set_deadline(self._limits.keep_alive_s)
        if not self._is_starting:
            self._answer_next()
        return None

    def drain(self) -> None:
        """Close once the current answer is complete; at once if there is none. May be repeated."""
        if not self._is_stopping:
            self._is_stopping = True
            self._hasten()
        if not self._is_busy():
            self._close()

    def leave(self) -> None:
        """Close with the next last answer, announcing it there, or after the idle timeout."""
        self._is_leaving = True

    def _client(self) -> str:
        """Client's address for the log, read once per connection; "" over a Unix socket."""
        if self._address is None:
            name = self.peername
            self._address = str(name[0]) if isinstance(name, tuple) else ""
        return self._address

    @property
    def peername(self) -> object:
        return self._transport and (self.source or self._transport.get_extra_info("peername"))

    @property
    def is_draining(self) -> bool:
        return self._is_stopping or (self._is_leaving and not self._queue and not self._is_receiving)

    def _answer_next(self) -> None:
        """Answer queued requests one after the other; a loop, since an answer may complete at once. A client
        that has not read the answers before gets no more."""
        self._is_starting = True
        while self._queue and not self._is_answering and not self._is_closing and self._transport:
            if self._is_unread():
                self._set_deadline(self._limits.keep_alive_s)
                break
            self._is_answering = True
            item = self._queue.popleft()
            if isinstance(item, _Refusal):
                self._on_refused(item.request, item.error)
                self._responder(item.request).fail(item.error, [request_id(item.request)])
            else:
                self._begin(item)
        self._is_starting = False
        if self._is_reading_paused and not self._has_too_much_queued():
            self.resume_reading()
        if self._owes_continue and not self._is_answering:
            self._owes_continue = False
            self._restart_body_clock()
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _begin(self, request: HttpRequest) -> None:
        exchange = self._handle(request, self._responder(request))
        if exchange is None:
            self._bodies.let_go(request)
        if self._is_answering:
            self._exchange = exchange

    def _responder(self, request: HttpRequest) -> Responder:
        if self._cross_origins is None:
            return Responder(self, request)
        return Responder(self, request, self._cross_origins.headers(request))

    def _refuse(self, error: GatewayError) -> None:
        """Answer earlier requests, then this error, then close; read nothing more."""
        if self._is_refusing:
            return
        self._is_refusing, self._owes_continue = True, False
        self._intake.drop()
        self._set_deadline(0)
        method = self._parser.get_method().decode()  # an answer to HEAD has no body, nor has a rejection
        request = HttpRequest(method, self._target, self._headers, keep_alive=False)
        request.client = self._client()
        self._queue.append(_Refusal(error, request))
        self._answer_next()

    def _close(self) -> None:
        """Close the connection.

        After a rejection or a tunnel the client's remaining bytes are read and dropped for a while, up to a
        limit: closing on unread bytes would reset the connection and lose the answer. Otherwise the client
        has the idle timeout to read what is written.
        """
        if not self._transport or self._is_closing:
            return
        if self._is_refusing and self._transport.can_write_eof():
            self._transport.write_eof()
            self._set_deadline(self._limits.keep_alive_s if self._upgrade_buffer else LINGER_S)
            self._upgrade_buffer = None
            self._is_lingering = True
            self._hasten()
        else:
            self._transport.close()
            self._set_deadline(self._limits.keep_alive_s)
        self._is_closing = True
        self.resume_reading()  # else the client's own end would not be seen

    def _hasten(self) -> None:
        """Shorten the wait for the end of a client that has all its bytes written, when the gateway stops."""
        if self._is_lingering and self._is_stopping and not self.is_full:
            self._timer.set(LINGER_S)

    # state -------------------------------------------------------------------------------------

    def _begin_message(self) -> None:
        self._in_head = self._is_receiving = True
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._fed_between = 0
        self._intake.begin()
        self._owes_continue = False

    def _is_busy(self) -> bool:
        has_rest = self._reads is not None and self._reads.has_rest
        return self._is_answering or bool(self._queue) or self._is_receiving or has_rest

    def _is_unread(self) -> bool:
        """Return True if the client has left so much of earlier answers unread that the next one waits."""
        return (
            self.is_full
            and self._transport is not None
            and self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES
        )

    def _has_too_much_queued(self) -> bool:
        """Return True if too many requests, or bytes of bodies, wait behind the one being answered."""
        if len(self._queue) < 2:
            return False
        bodies = (len(item.body) for item in self._queue if isinstance(item, HttpRequest))
        return len(self._queue) > self._limits.max_pipelined or sum(bodies) > MAX_QUEUED_BYTES

    def _check_framing_size(self, num_bytes: int) -> None:
        """Limit heads, chunk extensions and trailers without an end, which the parser's callbacks do not see.
        Reads with a body or its end do not count: most of them may have been that body."""
        if self._is_receiving and not self._has_body_in_read:
            self._fed_between += num_bytes
            if self._fed_between > self._limits.max_head_bytes:
                self._refuse(self._head_too_large())

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the head is over {self._limits.max_head_bytes} bytes")

    def pause_reading(self) -> None:
        if self._reads:
            self._reads.pause()

    def resume_reading(self) -> None:
        if self._reads and self._reads.is_paused:
            self._reads.resume()
            if self._is_receiving:
                self._restart_body_clock()

    @property
    def _is_reading_paused(self) -> bool:
        return self._reads is not None and self._reads.is_paused

    def _restart_body_clock(self) -> None:
        self._body_began = self._loop.time()
        self._set_deadline(self._limits.body_timeout_s)

    def _set_deadline(self, seconds: float) -> None:
        if not self._is_closing:  # the last deadline is that of closing
            self._timer.set(seconds)

    def _on_due(self) -> None:
        if not self._transport:
            return
        if self._is_closing or (self._queue and not self._is_answering and self._is_unread()):
            self._transport.abort()
        elif self._is_reading_paused or self._owes_continue:
            self._restart_body_clock()  # the delay is ours
        elif self._is_receiving:
            self._refuse(RequestTimeout("the request did not arrive in time"))
        else:
            self._close()
