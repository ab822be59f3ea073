"""Connections to workers: pooled, parsed, spliced.

A connection carries one exchange at a time and reports to its sink. Idle connections are kept at most
`idle_s`: engines behind uvicorn close theirs after 5 s, and a request sent into a closing connection would be
lost. A connection that the worker closed while idle is noticed at once and dropped.
"""

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import httptools

from gateway.config.proxy import ProxySection
from gateway.http.address import Address
from gateway.http.framing import BadAnswer, check_answer
from gateway.http.messages import Header, OutgoingHead, ResponseHead
from gateway.http.networks import Reachable
from gateway.runtime import process_limits, tls
from gateway.runtime.paced_reads import SLICE_BYTES, PacedReads
from gateway.upstream.access import PLAIN, WorkerAccess

OUR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Connect failures of this host, not of the worker."""
MAX_HEAD_BYTES: Final = 256 << 10
"""Limit of an answer's heads (interim ones and trailers included) and of all bytes between two pieces of its
body. Several times what any engine sends; an unbounded worker must not fill our memory."""


class ResponseSink(Protocol):
    """Receiver of a worker's answer: gets it in order, then exactly one of `upstream_ended`, with the last of
    the body, and `upstream_lost`.

    After each read from the worker one of the three behind `upstream_head` is called: buffered output can be
    written in one go.
    """

    def upstream_head(self, head: ResponseHead) -> None: ...
    def upstream_data(self, data: bytes) -> None: ...
    def upstream_ended(self, data: bytes) -> None: ...
    def upstream_lost(self, reason: str) -> None: ...


class WorkerConnection(Protocol):
    """A connection to a worker, as an exchange uses it: our own, or one that another proxy carries
    (`epp/envoy_connection.py`)."""

    def send(self, head: OutgoingHead, body: bytes, sink: ResponseSink) -> None: ...
    def divert(self, make: Callable[[ResponseSink], ResponseSink]) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def abort(self) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._sink: ResponseSink | None = None
        self._headers: list[Header] = []
        self._num_head_bytes = 0
        self._fed_between = 0
        self._body: list[bytes] = []
        self._has_news = False
        self._reads: PacedReads | None = None
        self._is_interim = False
        self._is_complete = False
        self._is_reusable = False
        self._ends_at_close = False
        self.num_requests = 0
        self.rested_since = 0.0

    def __repr__(self) -> str:
        state = "busy" if self._sink else "idle"
        return f"UpstreamConnection({self._pool.netloc.decode()}, {state}, requests={self.num_requests})"

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, head: OutgoingHead, body: bytes, sink: ResponseSink) -> None:
        assert self._transport is not None, "send on a closed connection"
        self._sink = sink
        self.num_requests += 1
        self._is_complete = self._has_news = False
        self._num_head_bytes = self._fed_between = 0
        if len(body) > 1 << 16:
            self._transport.write(head.encoded())
            self._transport.write(body)
        else:
            self._transport.write(head.encoded() + body)

    def divert(self, make: Callable[[ResponseSink], ResponseSink]) -> None:
        """Give the rest of an answer to another sink, which is made of the one so far."""
        assert self._sink is not None, "an answer is being read"
        self._sink = make(self._sink)

    @property
    def peer(self) -> str:
        """Address of the other end."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def file(self) -> int:
        """Number of the connection's open file, -1 if it is closed."""
        sock = self._transport.get_extra_info("socket") if self._transport else None
        return int(sock.fileno()) if sock else -1

    def _leave_http(self) -> Callable[[ResponseHead, bytes], None] | None:
        """Return the sink's handler of an accepted upgrade, which gets the head and the bytes behind it and
        takes the connection over; None if the sink offered none."""
        leave: Callable[[ResponseHead, bytes], None] | None = getattr(self._sink, "upstream_switched", None)
        return leave

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Hand the connection over to another protocol, and remove it from the pool."""
        assert self._transport is not None, "hand over a closed connection"
        if self._reads:
            self._reads.hand_over()
        transport, self._transport, self._sink = self._transport, None, None
        self._release()
        self._pool.closed(self)
        transport.set_protocol(protocol)
        return transport

    def abort(self) -> None:
        """End the exchange; the worker sees the disconnect and stops computing."""
        self._sink = None
        if self._transport:
            self._transport.abort()

    def forsake(self) -> None:
        """Drop a connection that failed or was cancelled while it was opened: the loop may have reported it
        as made, and uvloop closes its transport without reporting the loss."""
        transport, self._transport = self._transport, None
        self._release()
        self._pool.closed(self)
        if transport:
            transport.abort()

    def pause(self) -> None:
        if self._reads:
            self._reads.pause()

    def resume(self) -> None:
        if self._reads:
            self._reads.resume()

    def _release(self) -> None:
        """Drop what refers to our methods: a cycle that is never collected (runtime/gc_policy.py)."""
        self._parser = None
        if self._reads:
            self._reads.close()
            self._reads = None

    # transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reads = PacedReads(self._transport, self._pool.loop, self._read)
        self._pool.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._release()
        self._pool.closed(self)
        if self._sink:
            if self._ends_at_close and exc is None:
                self._finish()
            else:
                self._fail(f"connection lost: {tls.reason(exc) or exc}" if exc else "connection closed")

    def data_received(self, data: bytes) -> None:
        self._pool.num_reads += 1
        if self._reads and (len(data) > SLICE_BYTES or self._reads.has_rest):
            return self._reads.take(data)
        return self._read(data)

    def _read(self, data: bytes) -> None:
        if self._sink is None:
            return self.abort()  # unsolicited bytes: what follows cannot be trusted
        self._fed_between += len(data)
        try:
            self._parser.feed_data(data)
            if self._fed_between > MAX_HEAD_BYTES and not self._has_news:
                raise _too_large()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, BadAnswer) as exc:
            if isinstance(exc, httptools.HttpParserUpgrade) and (leave := self._leave_http()):
                rest = data[exc.args[0] :] + (self._reads.take_rest() if self._reads else b"")
                return leave(ResponseHead(self._parser.get_status_code(), self._headers), rest)
            if not self._is_complete:
                self._deliver()
                return self._fail(f"not HTTP: {exc.__context__ or exc}")
            self._is_reusable = False  # bytes behind a complete answer: the answer itself stands
        if self._is_complete:
            self._finish()
        else:
            self._deliver()
        return None

    def _deliver(self) -> None:
        if self._sink and self._has_news:
            self._has_news = False
            self._sink.upstream_data(self._take_body())

    def _take_body(self) -> bytes:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    # parser ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ValueError("bytes after a complete answer")
        self._headers = []
        self._ends_at_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_head_bytes += len(name) + len(value) + 4
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise _too_large()
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        length, is_chunked = check_answer(version, status, self._headers)
        self._is_interim = status < 200
        if self._is_interim or self._sink is None:
            return
        self._has_news = True
        self._ends_at_close = not is_chunked and length is None and status not in (204, 304)
        self._sink.upstream_head(ResponseHead(status, self._headers, length))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._has_news = True
        self._fed_between = 0

    def on_message_complete(self) -> None:
        if not self._is_interim:
            self._is_complete = True
            self._is_reusable = self._parser.should_keep_alive()

    # ends --------------------------------------------------------------------------------------

    def _finish(self) -> None:
        sink, self._sink = self._sink, None
        if self._is_reusable and self._has_sent_all():
            self.resume()
            self._pool.rest(self)
        elif self._transport:
            self._transport.close()
        if sink:
            sink.upstream_ended(self._take_body())

    def _has_sent_all(self) -> bool:
        """Return True if the whole request was sent. A worker may answer before; the rest of the request must
        not reach it as the next client's."""
        return self._transport is not None and self.is_open and not self._transport.get_write_buffer_size()

    def _fail(self, reason: str) -> None:
        sink, self._sink = self._sink, None
        if self._transport:
            self._transport.abort()
        if sink:
            sink.upstream_lost(reason)


def _too_large() -> BadAnswer:
    return BadAnswer(f"its head is over {MAX_HEAD_BYTES} bytes")


ANYWHERE: Final = Reachable()

TlsContext = Callable[[], ssl.SSLContext | None]
"""Returns the current verification of an https endpoint; None: the system's."""


DEFAULTS: Final = ProxySection()


class Pool:
    """Connections to one endpoint. `timeouts` are those of table `[proxy]`."""

    def __init__(
        self,
        url: str,
        timeouts: ProxySection = DEFAULTS,
        *,
        tls_context: TlsContext = lambda: None,
        access: WorkerAccess = PLAIN,
        reachable: Reachable = ANYWHERE,
    ) -> None:
        self._address = Address.of(url)
        self._server_name = access.server_name
        self._reachable = reachable
        self.netloc = access.host(self._address).encode()
        self.key = access.authorization.encode() if access.authorization else None
        self.path_prefix = self._address.prefix.encode()
        self._tls_context = tls_context
        self.limit(timeouts)
        self.loop = asyncio.get_running_loop()  # cached: get_running_loop costs a system call (Python < 3.12)
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.num_reads = self.num_opened = 0
        """Reads of answers, and accepted connections: signs of life beside probes."""

    def limit(self, timeouts: ProxySection) -> None:
        self.connect_timeout_s, self.idle_s = timeouts.connect_timeout_s, timeouts.pool_idle_s

    def __repr__(self) -> str:
        return f"Pool({self._address.name}, open={len(self._open)}, idle={len(self._idle)})"

    def take(self) -> UpstreamConnection | None:
        """Return an idle connection that is still open; the last used first, so that the others age."""
        oldest = self.loop.time() - self.idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.rested_since >= oldest:
                return connection
            connection.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """Open a connection. Raises OSError (TimeoutError is one), with a description where TLS failed."""
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await self._open_transport(connection)
        except BaseException as exc:
            connection.forsake()
            if isinstance(exc, ssl.SSLError):
                raise ConnectionError(tls.reason(exc)) from exc
            raise
        return self._checked(connection)

    async def _open_transport(self, connection: UpstreamConnection) -> None:
        loop, address = self.loop, self._address
        if address.unix_path:
            await loop.create_unix_connection(lambda: connection, address.unix_path)
            return
        context = (self._tls_context() or True) if address.is_tls else None
        await loop.create_connection(
            lambda: connection,
            address.host,
            address.port,
            ssl=context,
            server_hostname=self._server_name if context else None,
        )

    def _checked(self, connection: UpstreamConnection) -> UpstreamConnection:
        """Check a new connection's file number and peer. Raises OSError, with the connection aborted."""
        if connection.file >= process_limits.descriptors().workers_end:
            connection.abort()
            raise OSError(errno.EMFILE, "the last open files are reserved for probes and the admin port")
        if connection.peer and (refusal := self._reachable.refusal(connection.peer)):
            connection.abort()
            raise ConnectionError(refusal)
        return connection

    def close(self) -> None:
        """Close idle connections; those in use close when their exchange ends."""
        self.idle_s = 0.0
        while self._idle:
            self._idle.pop().abort()

    def opened(self, connection: UpstreamConnection) -> None:
        self._open.add(connection)
        self.num_opened += 1

    def closed(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def rest(self, connection: UpstreamConnection) -> None:
        if not self.idle_s:
            return connection.abort()  # the pool was closed meanwhile
        connection.rested_since = self.loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.idle_s, self._sweep)
        return None

    def _sweep(self) -> None:
        """Close connections that were idle too long; the oldest are in front."""
        self._sweeper = None
        while self._idle and self._idle[0].rested_since <= self.loop.time() - self.idle_s:
            self._idle.popleft().abort()
        if self._idle:
            due = self._idle[0].rested_since + self.idle_s - self.loop.time()
            self._sweeper = self.loop.call_later(max(due, 0.05), self._sweep)
