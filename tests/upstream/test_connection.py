"""Connections to workers without sockets: events of the sink by bytes received, and how long connections
rest.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest

from gateway.config.proxy import ProxySection
from gateway.http.messages import OutgoingHead, ResponseHead
from gateway.upstream.connection import MAX_HEAD_BYTES, Pool, UpstreamConnection
from tests.support.transports import FakeLoop, FakeTransport

REQUEST = OutgoingHead("POST", b"/v1/completions", [(b"host", b"w:8000")])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Transcript:
    """Sink that writes a transcript; `on_head` runs in the middle of it."""

    def __init__(self, on_head: Callable[[], None] | None = None) -> None:
        self.events: list[object] = []
        self._on_head = on_head

    def upstream_head(self, head: ResponseHead) -> None:
        self.events.append((head.status, head.length))
        if self._on_head:
            self._on_head()

    def upstream_data(self, data: bytes) -> None:
        if data:
            self.events.append(data)

    def upstream_ended(self, data: bytes) -> None:
        self.upstream_data(data)
        self.events.append("ended")

    def upstream_lost(self, reason: str) -> None:
        self.events.append("lost")
        assert reason


class ConnectionWorld:
    def __init__(self, loop: FakeLoop, idle_s: float = 4.0) -> None:
        self.loop = loop
        self.pool = Pool("http://w:8000/base/", ProxySection(pool_idle_s=idle_s))

    def connect(self) -> tuple[UpstreamConnection, FakeTransport]:
        connection = UpstreamConnection(self.pool)
        return connection, FakeTransport(connection)

    def ask(self, *answer: bytes) -> tuple[Transcript, UpstreamConnection, FakeTransport]:
        sink, (connection, transport) = Transcript(), self.connect()
        connection.send(REQUEST, b"body", sink)
        transport.feed(*answer)
        return sink, connection, transport


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ConnectionWorld:
    return ConnectionWorld(FakeLoop.install(monkeypatch))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD, LOST = (200, 2), "lost"


@pytest.mark.parametrize(
    ("answer", "expected", "rests"),
    [
        ([OK], [HEAD, b"ok", "ended"], True),
        ([OK[:-1], OK[-1:]], [HEAD, b"o", b"k", "ended"], True),
        ([b"HTTP/1.1 103 Early\r\n\r\n" + OK], [HEAD, b"ok", "ended"], True),
        ([CHUNKED, b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"], [(200, None), b"ab", "ended"], True),
        ([b"HTTP/1.1 204 No\r\n\r\n"], [(204, None), "ended"], True),
        ([OK.replace(b"Content", b"Connection: close\r\nContent")], [HEAD, b"ok", "ended"], False),
        ([OK.replace(b"1.1", b"1.0")], [HEAD, b"ok", "ended"], False),
        ([OK + OK], [HEAD, b"ok", "ended"], False),
        ([OK + b"garbage"], [HEAD, b"ok", "ended"], False),
        ([b"SSH-2.0\r\n"], [LOST], False),
        ([b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"], [LOST], False),
        ([OK.replace(b"200", b"099") + OK], [LOST], False),
        ([OK.replace(b"200", b"600")], [LOST], False),
        ([OK.replace(b"HTTP/1.1", b"HTTP/2.0")], [LOST], False),
        ([CHUNKED.replace(b"chunked", b"gzip, chunked")], [LOST], False),
        ([CHUNKED.replace(b"chunked", b"gzip") + b"ab"], [LOST], False),
        ([CHUNKED.replace(b"1.1", b"1.0") + b"1\r\na\r\n0\r\n\r\n"], [(200, None), b"a", "ended"], False),
        ([CHUNKED + b"1\r\na\r\nzz\r\n"], [(200, None), b"a", LOST], False),
    ],
)
def test_answers_are_passed_to_the_sink(
    world: ConnectionWorld, answer: list[bytes], expected: list[object], rests: bool
) -> None:
    sink, connection, transport = world.ask(*answer)
    assert transport.out == REQUEST.encoded() + b"body"
    assert sink.events == expected
    assert (world.pool.take() is connection) == rests
    assert transport.is_closing() != rests


@pytest.mark.parametrize(
    ("answer", "exc", "expected"),
    [
        (b"", None, [LOST]),
        (b"HTTP/1.1 200", None, [LOST]),
        (b"HTTP/1.1 100 Continue\r\n\r\n", None, [LOST]),
        (OK[:-1], None, [HEAD, b"o", LOST]),
        (CHUNKED + b"5\r\nab", None, [(200, None), b"ab", LOST]),
        (b"HTTP/1.1 200 OK\r\n\r\nab", None, [(200, None), b"ab", "ended"]),
        (b"HTTP/1.1 200 OK\r\n\r\nab", ConnectionResetError(), [(200, None), b"ab", LOST]),
        (OK, None, [HEAD, b"ok", "ended"]),
    ],
)
def test_a_connection_that_ends_is_reported(
    world: ConnectionWorld, answer: bytes, exc: Exception | None, expected: list[object]
) -> None:
    sink, _, transport = world.ask(answer)
    transport.lose(exc)
    assert sink.events == expected
    assert repr(world.pool) == "Pool(w:8000/base, open=0, idle=0)"


def test_surplus_bytes_close_a_resting_connection(world: ConnectionWorld) -> None:
    sink, _, transport = world.ask(OK)
    transport.feed(OK)
    assert transport.end == "aborted"
    assert sink.events == [HEAD, b"ok", "ended"]
    assert world.pool.take() is None


MANY = b"A: " + b"x" * 4000 + b"\r\n"


@pytest.mark.parametrize(
    ("begun", "more", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nA: ", b"x" * 4096, [LOST]),
        (b"HTTP/1.1 200 O", b"x" * 4096, [LOST]),
        (b"HTTP/1.1 200 OK\r\n", MANY, [LOST]),
        (b"", b"HTTP/1.1 103 Early\r\n" + MANY + b"\r\n", [LOST]),
        (b"", b"HTTP/1.1 100 Go on\r\n\r\n" * 190, [LOST]),
        (b"\r\n", b"\r\n" * 2048, [LOST]),
        (CHUNKED + b"1;", b"x" * 4096, [(200, None), LOST]),
        (CHUNKED + b"1\r\na\r\n0\r\n", MANY, [(200, None), b"a", LOST]),
    ],
    ids=["header", "reason", "headers", "hints", "interim", "empty lines", "chunk extension", "trailers"],
)
def test_an_answer_with_an_endless_head_is_aborted(
    world: ConnectionWorld, begun: bytes, more: bytes, expected: list[object]
) -> None:
    sink, _, transport = world.ask(begun, *[more] * 60)
    assert LOST not in sink.events
    transport.feed(*[more] * 20)
    assert sink.events == expected
    assert transport.end == "aborted"


def test_a_long_body_is_not_taken_for_a_head(world: ConnectionWorld) -> None:
    size = MAX_HEAD_BYTES * 2
    sink, connection, _ = world.ask(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, *[b"x" * 65536] * (size // 65536)
    )
    assert sink.events[-1] == "ended"
    for _ in range(20):  # nor are all heads of one connection counted as one
        sink = Transcript()
        connection.send(REQUEST, b"", sink)
        cast(FakeTransport, connection._transport).feed(OK.replace(b"\r\nC", b"\r\n" + MANY * 20 + b"C"))
        assert sink.events == [HEAD, b"ok", "ended"]


def test_an_answer_before_the_request_was_sent_ends_the_connection(world: ConnectionWorld) -> None:
    """The worker may take the rest of that request for another one: its answer would be the next client's."""
    sink, (connection, transport) = Transcript(), world.connect()
    connection.send(REQUEST, b"body", sink)
    transport.num_unsent = 1
    transport.feed(OK)
    assert sink.events == [HEAD, b"ok", "ended"]
    assert world.pool.take() is None
    assert transport.end == "closed"


def test_the_reason_of_a_lost_connection_names_the_fault(world: ConnectionWorld) -> None:
    reasons: list[str] = []
    sink, (connection, transport) = Transcript(), world.connect()
    sink.upstream_lost = reasons.append  # type: ignore[method-assign]
    connection.send(REQUEST, b"body", sink)
    transport.feed(OK.replace(b"200", b"099"))
    assert reasons == ["not HTTP: invalid status 99"]


def test_an_aborted_exchange_gets_no_further_event(world: ConnectionWorld) -> None:
    connection, transport = world.connect()
    sink = Transcript(on_head=connection.abort)
    connection.send(REQUEST, b"", sink)
    transport.feed(OK)
    transport.lose()
    assert sink.events == [HEAD]


def test_a_paused_connection_rests_reading(world: ConnectionWorld) -> None:
    """A resting connection must notice that its worker closes it."""
    connection, transport = world.connect()
    sink = Transcript(on_head=connection.pause)
    connection.send(REQUEST, b"", sink)
    transport.feed(OK)
    assert transport.is_reading
    assert world.pool.take() is connection


def test_a_large_head_is_not_copied_to_its_body(world: ConnectionWorld) -> None:
    connection, transport = world.connect()
    connection.send(REQUEST, b"x" * (1 << 17), Transcript())
    assert transport.out == REQUEST.encoded() + b"x" * (1 << 17)


# the pool ----------------------------------------------------------------------------------------


def test_connections_rest_shorter_than_engines_keep_them() -> None:
    assert ProxySection().pool_idle_s == 4.0


def test_connections_rest_for_a_limited_time(world: ConnectionWorld) -> None:
    _, _, old = world.ask(OK)
    world.loop.advance(3.0)
    _, young, _ = world.ask(OK)
    world.loop.advance(1.1)
    assert old.end == "aborted"
    assert world.pool.take() is young
    assert world.pool.take() is None


def test_an_expired_rest_is_noticed_before_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ConnectionWorld(FakeLoop.install(monkeypatch))
    _, _, transport = world.ask(OK)
    world.loop.now += 4.1  # the loop was busy: no timer has fired
    assert world.pool.take() is None
    assert transport.end == "aborted"


def test_the_last_used_connection_is_taken_first(world: ConnectionWorld) -> None:
    _, first, _ = world.ask(OK)
    _, second, _ = world.ask(OK)
    assert [world.pool.take(), world.pool.take(), world.pool.take()] == [second, first, None]


def test_a_connection_closed_by_the_worker_is_not_taken(world: ConnectionWorld) -> None:
    _, first, _ = world.ask(OK)
    _, _, transport = world.ask(OK)
    transport.lose()
    assert world.pool.take() is first


def test_closing_the_pool_lets_requests_finish(world: ConnectionWorld) -> None:
    _, _, resting = world.ask(OK)
    sink, (connection, busy) = Transcript(), world.connect()
    connection.send(REQUEST, b"", sink)
    world.pool.close()
    assert (resting.end, busy.end) == ("aborted", "")
    busy.feed(OK)
    assert sink.events == [HEAD, b"ok", "ended"]
    world.loop.advance(0.1)
    assert busy.end == "aborted"


class FailingLoop(FakeLoop):
    """Loop that reports connections as made, and then fails or is cancelled before it returns them."""

    failure: BaseException = asyncio.CancelledError()

    async def create_connection(self, make: Callable[[], asyncio.Protocol], *_: object, **__: Any) -> object:
        self.made = FakeTransport(make())
        raise self.failure

    create_unix_connection = create_connection


@pytest.mark.parametrize("url", ["http://w:8000", "https://w", "unix:/run/w.sock"])
@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (asyncio.CancelledError(), asyncio.CancelledError),
        (ConnectionRefusedError(), ConnectionRefusedError),
        (ssl.SSLError("no TLS"), ConnectionError),
    ],
)
async def test_a_connection_that_fails_while_it_is_opened_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, url: str, failure: BaseException, raised: type[BaseException]
) -> None:
    loop = FailingLoop.install(monkeypatch)
    assert isinstance(loop, FailingLoop)
    loop.failure = failure
    pool = Pool(url)
    with pytest.raises(raised):
        await pool.connect()
    assert (len(pool._open), loop.made.end) == (0, "aborted")
    assert not cast(UpstreamConnection, loop.made.protocol).is_open


@pytest.mark.parametrize(
    ("url", "netloc", "prefix"),
    [("http://w:8000", "w:8000", ""), ("http://w/a/b/", "w", "/a/b"), ("http://[::1]:80", "[::1]:80", "")],
)
def test_urls_are_split(monkeypatch: pytest.MonkeyPatch, url: str, netloc: str, prefix: str) -> None:
    FakeLoop.install(monkeypatch)
    pool = Pool(url)
    assert (pool.netloc, pool.path_prefix) == (netloc.encode(), prefix.encode())


@pytest.mark.parametrize("url", ["w:8000", "ftp://w", "http://", ""])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="not an http|names no host"):
        Pool(url)


def test_bytes_behind_an_answer_in_a_large_read_end_the_connection(world: ConnectionWorld) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n"
    sink, connection, transport = world.ask(head + b"x" * 20_000 + b"HTTP/1.1 200 OK\r\n" * 1000)
    assert sink.events[-1] == "ended" and sink.events.count((200, 20_000)) == 1
    assert transport.end == "aborted" and world.pool.take() is None


def test_a_sink_that_pauses_gets_nothing_more_of_a_large_read(world: ConnectionWorld) -> None:
    connection, transport = world.connect()
    sink = Transcript(on_head=lambda: connection.pause())
    connection.send(REQUEST, b"body", sink)
    body = b"x" * 50_000
    transport.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + body)
    assert "ended" not in sink.events and not transport.is_reading
    connection.resume()
    world.loop.advance(0)
    assert b"".join(each for each in sink.events if isinstance(each, bytes)) == body
    assert sink.events[-1] == "ended"
    world.loop.advance(0)
    assert transport.is_reading and world.pool.take() is connection


def test_reads_and_accepted_connections_are_counted_as_signs_of_life(world: ConnectionWorld) -> None:
    world.ask(OK[:20], OK[20:])
    world.connect()
    assert (world.pool.num_reads, world.pool.num_opened) == (2, 2)
