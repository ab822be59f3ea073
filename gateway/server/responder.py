"""Responses to a client, framed for the request that they belong to."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.apis.error_format import body_of, event_of, is_anthropic
from gateway.core.errors import GatewayError
from gateway.http.messages import (
    LAST_CHUNK,
    Header,
    HttpRequest,
    ResponseHead,
    chunk,
    encode_head,
    status_line,
)
from gateway.runtime.ids import new_id


class Connection(Protocol):
    """Client connection, as far as a response needs it."""

    is_full: bool

    @property
    def peername(self) -> object:
        """Peer name of the transport; None where it is closed."""

    @property
    def is_draining(self) -> bool:
        """True if an answer that begins now is the last one here."""

    def write(self, data: bytes) -> None: ...
    def answered(self, keep_alive: bool) -> None: ...
    def abort(self, *, with_reset: bool = False) -> None: ...
    def leave_http(self, receive: Callable[[bytes], None]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Exchange(Protocol):
    """Exchange that answers a request, and is notified of its client's socket."""

    def client_gone(self) -> None: ...
    def client_full(self) -> None: ...
    def client_free(self) -> None: ...


class Responder:
    """Response to one request: `send` for a whole answer, else `head`, `data` ..., `end`. `more_headers` are
    added to either, and `standing` ones to whatever is answered."""

    __slots__ = (
        "_connection",
        "_request",
        "_is_chunked",
        "_has_body",
        "_ends_at_close",
        "_head",
        "has_begun",
        "more_headers",
        "_standing",
    )

    def __init__(self, connection: Connection, request: HttpRequest, standing: Sequence[Header] = ()) -> None:
        self._connection = connection
        self._request = request
        self._is_chunked = False
        self._has_body = request.method != "HEAD"
        self._ends_at_close = False
        self._head = b""
        self.has_begun = False
        self.more_headers: list[Header] = []
        self._standing = standing

    @property
    def peer(self) -> str | None:
        """Client's address of the connection; "" over a Unix socket, None if it is gone."""
        name = self._connection.peername
        return str(name[0]) if isinstance(name, tuple) else "" if name is not None else None

    @property
    def client_is_full(self) -> bool:
        """True while the client's socket is full, also with earlier answers."""
        return self._connection.is_full

    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        self.head(ResponseHead(status, headers, len(body)))
        self.end(body)

    def fail(self, error: GatewayError, headers: list[Header] | None = None) -> None:
        """Answer with an error object in the format of the route. `headers` have the request's id, if any."""
        all_headers = [(b"content-type", b"application/json"), *(headers or [])]
        path = self._request.path
        id = next((value for name, value in all_headers if name == b"x-request-id"), b"")
        if is_anthropic(path):
            all_headers.append((b"request-id", id))
        all_headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
        if error.retry_after_s is not None:
            all_headers.append((b"retry-after", b"%d" % error.retry_after_s))
        if error.retry_after_ms is not None:
            all_headers.append((b"retry-after-ms", b"%d" % error.retry_after_ms))
        self.send(error.status, all_headers, body_of(error, path, id.decode("latin-1")))

    def head(self, head: ResponseHead) -> None:
        """Begin the answer; it goes out with the next data, be it empty: `data(b"")`."""
        self.has_begun = True
        if self._connection.is_draining:
            self._request.keep_alive = False
        headers = head.headers + self.more_headers
        if self._standing:
            headers += self._standing
        if head.status in (204, 304):
            self._has_body = False
        elif head.length is not None:
            headers.append((b"content-length", b"%d" % head.length))
        elif self._request.is_http10:
            self._ends_at_close = True
            self._request.keep_alive = False
        else:
            headers.append((b"transfer-encoding", b"chunked"))
            self._is_chunked = self._has_body
        if not self._request.keep_alive:
            headers.append((b"connection", b"close"))
        elif self._request.is_http10:
            headers.append((b"connection", b"keep-alive"))
        self._head = encode_head(status_line(head.status), headers)

    def data(self, data: bytes) -> None:
        self._write(self._frame(data))

    def end(self, data: bytes = b"") -> None:
        """Complete the answer; the connection continues with the next request or closes."""
        data = self._frame(data)
        self._write(data + LAST_CHUNK if self._is_chunked else data)
        self._connection.answered(self._request.keep_alive)

    def end_in_error(self, held: bytes, error: GatewayError, request_id: bytes) -> None:
        """End a stream with an error event, behind the bytes held back of it."""
        event = event_of(error, self._request.path, request_id.decode("latin-1"))
        self.end(held + event)

    def switch(self, head: bytes, receive: Callable[[bytes], None]) -> None:
        """Answer with this 101. From now on `receive` gets the client's bytes, including those it has sent
        already; `data` goes to the client as it is, and `end` closes."""
        self.has_begun = True
        self._connection.write(head)
        self._connection.leave_http(receive)

    def hold_client(self, is_held: bool) -> None:
        """Pause or resume reading from the client, on a connection that has left HTTP."""
        if is_held:
            self._connection.pause_reading()
        else:
            self._connection.resume_reading()

    def abort(self) -> None:
        """Abort an answer that cannot be completed, so that the client notices. Where the end of the
        connection is the end of the body, only a reset shows it."""
        self._connection.abort(with_reset=self._ends_at_close)

    def _write(self, out: bytes) -> None:
        if self._head:
            out, self._head = self._head + out, b""
        if out:
            self._connection.write(out)

    def _frame(self, data: bytes) -> bytes:
        if not data or not self._has_body:
            return b""
        return chunk(data) if self._is_chunked else data


Handle = Callable[[HttpRequest, Responder], Exchange | None]
"""Answers a request at once (returns None) or later, through the Responder."""


def request_id(http: HttpRequest) -> Header:
    """Return the client's own request id, so that its log and ours match, or a new one; the same one for
    each call about a request."""
    if not http.request_id:
        http.request_id = http.header(b"x-request-id") or new_id().encode()
    return b"x-request-id", http.request_id
