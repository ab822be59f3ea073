"""Client connections without sockets or time; tests/blackbox has the meaning of bytes on the wire."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decode_errors import LARGE
from gateway.core.errors import GatewayError
from gateway.http.framing import HttpLimits
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.http.upgrade import HTTP2_REFUSAL
from gateway.server.body_budget import BodyBudget
from gateway.server.connection import LINGER_S, MAX_DROPPED_BYTES, ClientConnection
from gateway.server.responder import Exchange, Responder
from tests.support.transports import FakeLoop, FakeTransport

GET, SLOW = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LIMITS = HttpLimits(keep_alive_s=75.0, head_timeout_s=30.0, body_timeout_s=60.0, max_pipelined=4)


class HeldExchange:
    """Exchange that keeps the events of its client."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def client_gone(self) -> None:
        self.events.append("gone")

    def client_full(self) -> None:
        self.events.append("full")

    def client_free(self) -> None:
        self.events.append("free")


class Server:
    """Connection to a server; /now is answered at once, /slow by the test."""

    def __init__(self, loop: FakeLoop, limits: HttpLimits = LIMITS) -> None:
        self.loop = loop
        self.requests: list[HttpRequest] = []
        self.slow: list[tuple[Responder, HeldExchange]] = []
        self.registry: set[ClientConnection] = set()
        self.refused: list[int] = []
        self.bodies = BodyBudget()
        self.connection = ClientConnection(self.handle, limits, self.registry, self._refuse, self.bodies)
        self.transport = FakeTransport(self.connection)

    def _refuse(self, request: HttpRequest, error: GatewayError) -> None:
        self.refused.append(error.status)

    def handle(self, request: HttpRequest, responder: Responder) -> Exchange | None:
        self.requests.append(request)
        if request.path == "/slow":
            exchange = HeldExchange()
            self.slow.append((responder, exchange))
            return exchange
        responder.send(200, [], b"ok")
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(FakeLoop.install(monkeypatch))


STREAM = (
    b"POST /a HTTP/1.1\r\nHost: a\r\nA: 1\r\nContent-Length: 3\r\n\r\nabc"
    b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2;x=1\r\nde\r\n1\r\nf\r\n0\r\nT: 1\r\n\r\n"
    b"POST /c HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\ngh"
    b"GET /d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
)


@given(cuts=st.lists(st.integers(1, len(STREAM) - 1)))
def test_requests_are_the_same_in_any_splits(cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        server = Server(FakeLoop.install(patch))
        borders = [0, *sorted(cuts), len(STREAM)]
        server.transport.feed(*(STREAM[a:b] for a, b in zip(borders, borders[1:], strict=False)))
    seen = [(r.method, r.path, r.body, r.keep_alive) for r in server.requests]
    assert seen == [
        ("POST", "/a", b"abc", True),
        ("POST", "/b", b"def", True),
        ("POST", "/c", b"gh", True),
        ("GET", "/d", b"", False),
    ]
    assert [r.headers[1][0] for r in server.requests] == [
        b"a",
        b"transfer-encoding",
        b"connection",
        b"connection",
    ]
    assert server.transport.end == "closed"


def test_answers_keep_the_order_of_their_requests(server: Server) -> None:
    server.transport.feed(GET + SLOW + GET + SLOW + GET)
    assert server.transport.taken() == OK
    assert len(server.requests) == 2  # one at a time
    server.slow[0][0].send(200, [], b"ok")
    assert server.transport.taken() == OK * 2
    server.slow[1][0].send(200, [], b"ok")
    assert server.transport.taken() == OK * 2
    assert repr(server.connection) == "ClientConnection(idle, queued=0)"


def test_reading_stops_while_too_many_requests_are_queued(server: Server) -> None:
    server.transport.feed(SLOW + GET * 5)
    assert not server.transport.is_reading
    assert repr(server.connection) == "ClientConnection(answering, queued=5)"
    server.slow[0][0].send(200, [], b"ok")
    assert server.transport.is_reading
    assert server.transport.taken() == OK * 6


def test_a_client_that_reads_no_answers_gets_no_more(server: Server) -> None:
    """Else requests sent ahead would fill the memory with their answers."""
    server.transport.num_unsent = 1 << 20
    server.connection.pause_writing()
    server.transport.feed(GET * 5)
    assert not server.requests and not server.transport.is_reading
    server.connection.resume_writing()
    assert server.transport.is_reading and server.transport.taken() == OK * 5


def test_a_client_that_never_reads_is_disconnected(server: Server) -> None:
    server.transport.num_unsent = 1 << 20
    server.connection.pause_writing()
    server.transport.feed(GET * 5)
    server.loop.advance(LIMITS.keep_alive_s + 1)
    assert server.transport.end == "aborted" and not server.requests


def test_a_large_body_is_read_one_piece_per_loop_iteration(server: Server) -> None:
    """So that one client's body does not keep other connections from the loop."""
    piece = b"x" * (1 << 20)
    server.transport.feed(b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (3 << 20))
    for _ in range(2):
        assert server.transport.is_reading
        server.transport.feed(piece)
        assert not server.transport.is_reading
        server.loop.advance(0)
    server.transport.feed(piece)
    assert (server.transport.taken(), len(server.requests[0].body)) == (OK, 3 << 20)


def test_a_queue_that_is_full_stays_unread_behind_a_large_body(server: Server) -> None:
    large = b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (2 << 20) + b"x" * (2 << 20)
    server.transport.feed(SLOW + GET + large)
    server.loop.advance(0)
    assert not server.transport.is_reading
    server.slow[0][0].send(200, [], b"ok")
    assert server.transport.is_reading


def test_a_head_is_not_charged_for_the_body_before_it(server: Server) -> None:
    large = b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    server.transport.feed(large + GET[:5], GET[5:6], GET[6:])
    assert server.transport.out == OK * 2


@pytest.mark.parametrize("begun", [b"GET /", b"GET / HTTP/1.1\r\nHost: a\r\nA: "])
def test_an_endless_head_is_rejected(server: Server, begun: bytes) -> None:
    server.transport.feed(begun, *[b"x" * 4096] * 15)
    assert server.transport.out == b""
    server.transport.feed(*[b"x" * 4096] * 2)
    assert server.transport.out.startswith(b"HTTP/1.1 431 ")
    assert server.transport.end == "eof"


def test_a_trailer_is_no_header(server: Server) -> None:
    head = b"POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    framed = head + b"0\r\nA: 2\r\nB: 3\r\n\r\n"
    server.transport.feed(framed)
    assert server.requests[0].headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]


def test_an_answer_may_take_hours(server: Server) -> None:
    """A queued request has as long: the clock belongs to its exchange, not to the connection."""
    server.transport.feed(GET + SLOW)
    server.loop.advance(36_000)
    responder, exchange = server.slow[0]
    responder.head(ResponseHead(200, []))
    responder.data(b"a")
    server.loop.advance(36_000)
    responder.end(b"b")
    assert exchange.events == []
    assert server.transport.taken().endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    assert server.transport.end == ""
    server.loop.advance(75.1)
    assert server.transport.end == "closed"


@pytest.mark.parametrize(
    ("sent", "seconds", "status"),
    [
        (b"GET /now HT", 30.1, b"408"),
        (b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", 60.1, b"408"),
    ],
)
def test_an_idle_connection_is_closed(server: Server, sent: bytes, seconds: float, status: bytes) -> None:
    server.transport.feed(sent)
    server.loop.advance(seconds - 0.2)
    assert server.transport.out == b""
    server.loop.advance(0.2)
    assert server.transport.out.startswith(b"HTTP/1.1 " + status)
    assert server.transport.end == "eof"
    server.loop.advance(LINGER_S + 0.1)
    assert server.transport.end == "aborted"


SLOW_BODY = b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"


def test_a_body_on_a_slow_link_has_all_the_time_it_needs(server: Server) -> None:
    """A thousand pieces at twice the lowest rate: only the rate counts."""
    server.transport.feed(SLOW_BODY)
    for _ in range(1000):
        server.loop.advance(1)
        server.transport.feed(b"x" * 1000)
    assert server.transport.out == OK


def test_a_dripping_body_is_cut(server: Server) -> None:
    server.transport.feed(SLOW_BODY)
    for _ in range(30):  # each before the limit between two pieces
        server.loop.advance(2)
        server.transport.feed(b"x")
    assert server.transport.out == b""
    server.loop.advance(2)
    assert server.transport.out.startswith(b"HTTP/1.1 408 ")
    assert server.transport.end == "eof"


def test_a_dripping_chunked_body_is_cut(server: Server) -> None:
    server.transport.feed(b"POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;")
    for _ in range(61):
        server.loop.advance(1)
        server.transport.feed(b"x")
    assert server.transport.out.startswith(b"HTTP/1.1 408 ")


def test_a_request_is_not_late_while_it_is_not_read(server: Server) -> None:
    """A request arrives in part with earlier ones, which are answered first, however long that takes."""
    server.transport.feed(SLOW + GET * 5 + SLOW_BODY[:-9])
    assert not server.transport.is_reading
    server.loop.advance(3600)
    server.slow[0][0].send(200, [], b"ok")
    server.loop.advance(59)
    assert server.transport.taken() == OK * 6
    server.loop.advance(2)
    assert server.transport.out.startswith(b"HTTP/1.1 408 ")


def test_a_request_is_not_late_while_it_waits_for_a_100(server: Server) -> None:
    expects = b"POST /now HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    server.transport.feed(SLOW + expects)
    server.loop.advance(3600)
    server.slow[0][0].send(200, [], b"ok")
    assert server.transport.taken() == OK + b"HTTP/1.1 100 Continue\r\n\r\n"
    server.loop.advance(59)
    server.transport.feed(b"ab")
    assert server.transport.taken() == OK


CHUNKS = b"POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begun", [b"1;", b"0\r\nA: ", b"1\r\na\r\n0\r\nA: b\r\nB", b"0" * 9])
def test_endless_chunk_framing_is_rejected(server: Server, begun: bytes) -> None:
    server.transport.feed(CHUNKS + begun, *[b"0" * 4096] * 15)
    assert server.transport.out == b""
    server.transport.feed(*[b"0" * 4096] * 2)
    assert server.transport.out.startswith(b"HTTP/1.1 431 ")


def test_trailers_are_limited_like_the_head(server: Server) -> None:
    trailers = b"".join(b"A%d: %b\r\n" % (i, b"x" * 990) for i in range(66))
    server.transport.feed(CHUNKS + b"0\r\n" + trailers + b"\r\n")
    assert server.transport.out.startswith(b"HTTP/1.1 431 ")
    assert not server.requests


def test_requests_behind_a_waiting_rejection_are_ignored(server: Server) -> None:
    """Requests behind it in the same read are parsed, but neither answered nor continued."""
    bad = b"POST /now HTTP/1.1\r\nHost: a\r\nExpect: magic\r\n\r\n"
    expects = b"POST /now HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    server.transport.feed(SLOW + bad + expects)
    server.loop.advance(100)
    server.slow[0][0].send(200, [], b"ok")
    assert server.transport.out.startswith(OK + b"HTTP/1.1 417 ")
    assert server.transport.out.count(b"HTTP/1.1 ") == 2
    assert server.transport.end == "eof"
    assert server.refused == [417]


def test_an_answer_that_is_never_read_is_cut(server: Server) -> None:
    server.transport.feed(b"GET /now HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert server.transport.end == "closed"  # but its bytes are still to be read
    server.loop.advance(75.1)
    assert server.transport.end == "aborted"


def test_the_exchange_gets_each_client_event_once(server: Server) -> None:
    server.transport.feed(SLOW)
    exchange = server.slow[0][1]
    server.connection.pause_writing()
    server.connection.resume_writing()
    server.transport.lose()
    assert exchange.events == ["full", "free", "gone"]
    assert server.registry == set()
    server.slow[0][0].data(b"late")  # repeated: harmless
    server.slow[0][0].end()
    assert exchange.events == ["full", "free", "gone"]


def test_a_client_full_of_an_earlier_answer_pauses_the_next_exchange(server: Server) -> None:
    server.transport.feed(SLOW)
    server.connection.pause_writing()
    server.slow[0][0].send(200, [], b"ok")
    server.transport.feed(SLOW)
    assert server.slow[1][0].client_is_full
    server.connection.resume_writing()
    assert not server.slow[1][0].client_is_full
    assert server.slow[1][1].events == ["free"]


def test_draining_closes_after_the_answer(server: Server) -> None:
    server.transport.feed(SLOW + SLOW)
    server.connection.drain()
    assert server.transport.end == ""
    server.slow[0][0].send(200, [], b"ok")
    assert b"connection: close" in server.transport.out
    assert server.transport.end == "closed"
    assert len(server.requests) == 1


def test_draining_closes_an_idle_connection(server: Server) -> None:
    server.connection.drain()
    assert server.transport.end == "closed"


def test_leaving_answers_received_requests_and_marks_the_last_answer(server: Server) -> None:
    server.transport.feed(SLOW + SLOW + GET[:-2])
    server.connection.leave()
    for responder, _ in server.slow:
        responder.send(200, [], b"ok")
    assert server.transport.out == OK + OK
    server.transport.feed(b"\r\n")
    last = server.transport.out.removeprefix(OK + OK)
    assert last == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    assert server.transport.end == "closed"


def test_leaving_answers_one_more_request_or_closes_in_time(server: Server) -> None:
    server.transport.feed(GET)
    server.connection.leave()
    assert server.transport.end == ""
    server.loop.advance(LIMITS.keep_alive_s - 1)
    assert server.transport.end == ""
    server.transport.feed(GET)
    assert b"connection: close" in server.transport.out
    assert server.transport.end == "closed"


def test_leaving_behind_the_head_of_an_answer_keeps_the_connection_open_as_announced(server: Server) -> None:
    server.transport.feed(SLOW)
    responder = server.slow[0][0]
    responder.head(ResponseHead(200, [], 2))
    responder.data(b"o")
    server.connection.leave()
    responder.end(b"k")
    assert (server.transport.out, server.transport.end) == (OK, "")
    server.loop.advance(LIMITS.keep_alive_s + 1)
    assert server.transport.end == "closed"


@pytest.mark.parametrize(
    ("version", "length", "end"),
    [
        (b"1.1", None, b"\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"),
        (b"1.1", 1, b"\r\ncontent-length: 1\r\n\r\na"),
        (b"1.0", None, b"\r\nconnection: close\r\n\r\na"),
    ],
)
def test_malformed_framing_is_rejected(
    server: Server, version: bytes, length: int | None, end: bytes
) -> None:
    server.transport.feed(b"GET /slow HTTP/%b\r\nHost: a\r\nConnection: keep-alive\r\n\r\n" % version)
    server.slow[0][0].head(ResponseHead(200, [], length))
    server.slow[0][0].data(b"a")
    server.slow[0][0].end()
    assert server.transport.out == b"HTTP/1.1 200 OK" + end


def test_a_rejection_by_the_handler_is_answered(server: Server) -> None:
    server.transport.feed(b"POST /now HTTP/1.1\r\nHost: a\r\nExpect: magic\r\nX-Request-Id: 7\r\n\r\n")
    head, _, body = server.transport.out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 417 ")
    assert b"\r\nx-request-id: 7" in head
    assert b'"code":"expectation_failed"' in body
    assert not server.requests


def test_a_rejection_is_counted(server: Server) -> None:
    server.transport.feed(b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n")
    assert server.refused == [400]


def test_a_connection_with_large_bodies_waiting_is_not_read(server: Server) -> None:
    large = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + b"x" * 900_000
    server.transport.feed(large, large)
    server.loop.advance(0)
    assert server.transport.is_reading
    server.transport.feed(large)
    server.loop.advance(0)
    assert not server.transport.is_reading
    server.slow[0][0].send(200, [], b"")
    assert server.transport.is_reading


OFFER = b"GET /slow HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def test_a_large_read_behind_an_offer_belongs_to_the_upgraded_connection(server: Server) -> None:
    data = bytes(range(256)) * 200
    server.transport.feed(OFFER + data)
    received: list[bytes] = []
    server.connection.leave_http(received.append)
    assert b"".join(received) == data


def test_an_upgraded_connection_passes_bytes_both_ways(server: Server) -> None:
    """Bytes of the client pass unchanged, and those of the answer; they wait for a full peer."""
    server.transport.feed(GET + OFFER + b"ear", b"ly")
    assert [(r.path, r.is_upgrade) for r in server.requests] == [("/now", False), ("/slow", True)]
    assert server.transport.taken() == OK
    responder, exchange = server.slow[0]
    received: list[bytes] = []
    responder.switch(b"HTTP/1.1 101\r\n\r\n", received.append)
    server.transport.feed(GET)
    responder.data(b"abc")
    assert server.transport.taken() == b"HTTP/1.1 101\r\n\r\nabc"
    assert received == [b"early", GET]
    responder.hold_client(True)
    assert not server.transport.is_reading
    responder.hold_client(False)
    assert server.transport.is_reading
    server.loop.advance(36_000)
    assert server.transport.end == ""
    responder.end()
    assert server.transport.end == "eof"  # its bytes may still have to be read
    server.transport.feed(GET)
    assert received == [b"early", GET]
    assert exchange.events == []
    server.loop.advance(75.1)
    assert server.transport.end == "aborted"


def end_of_a_tunnel(server: Server) -> None:
    server.transport.feed(OFFER)
    responder, _ = server.slow[0]
    responder.switch(b"HTTP/1.1 101\r\n\r\n", lambda data: None)
    responder.end()
    assert server.transport.end == "eof"


def rejection(server: Server) -> None:
    server.transport.feed(b"no HTTP\r\n\r\n")
    assert server.transport.end == "eof"


def waiting_rejection(server: Server) -> None:
    server.transport.feed(SLOW, b"no HTTP\r\n\r\n")
    assert server.transport.end == ""


@pytest.mark.parametrize("begin", [end_of_a_tunnel, rejection, waiting_rejection])
def test_a_client_that_goes_on_sending_behind_the_end_is_cut(
    server: Server, begin: Callable[[Server], None]
) -> None:
    """Bytes are read and dropped up to a limit, whatever time the client still has."""
    begin(server)
    before = server.transport.end
    piece = bytes(1 << 20)
    for _ in range(MAX_DROPPED_BYTES // len(piece)):
        server.connection.data_received(piece)
        server.loop.advance(0.001)
    assert server.transport.end == before
    server.connection.data_received(piece)
    server.loop.advance(0.1)
    assert server.transport.end == "aborted"


def test_a_stop_waits_a_moment_for_the_client_of_an_ended_tunnel(server: Server) -> None:
    end_of_a_tunnel(server)
    server.loop.advance(LIMITS.keep_alive_s / 2)
    for _ in range(100):  # as `Listener.drain`
        server.connection.drain()
        server.loop.advance(LINGER_S / 101)
        server.transport.feed(b"x")
    assert server.transport.end == "eof"
    server.loop.advance(LINGER_S / 10)
    assert server.transport.end == "aborted"


def test_a_tunnel_that_ends_during_a_stop_waits_a_moment_for_its_client(server: Server) -> None:
    server.transport.feed(OFFER)
    responder, _ = server.slow[0]
    responder.switch(b"HTTP/1.1 101\r\n\r\n", lambda data: None)
    server.connection.drain()
    server.loop.advance(36_000)
    assert server.transport.end == ""
    responder.end()
    server.loop.advance(LINGER_S + 0.1)
    assert server.transport.end == "aborted"


def test_a_stop_lets_the_client_of_an_ended_tunnel_read_what_is_written(server: Server) -> None:
    server.connection.pause_writing()
    end_of_a_tunnel(server)
    server.connection.drain()
    server.loop.advance(LIMITS.keep_alive_s / 2)
    assert server.transport.end == "eof"
    server.connection.resume_writing()
    server.loop.advance(LINGER_S - 0.1)
    assert server.transport.end == "eof"
    server.loop.advance(0.2)
    assert server.transport.end == "aborted"


def test_an_upgrade_that_is_not_accepted_is_the_last_request(server: Server) -> None:
    server.transport.feed(OFFER.replace(b"/slow", b"/now") + GET)
    assert b"connection: close" in server.transport.out
    assert len(server.requests) == 1
    assert server.transport.end == "eof"
    assert server.refused == []


def test_bytes_before_the_upgrade_is_accepted_are_bounded(server: Server) -> None:
    server.transport.feed(OFFER, *[b"x" * 30_000] * 3)
    assert not server.transport.is_reading


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (OFFER.replace(b"Host: a\r\n", b""), 400),
        (OFFER.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\nx"), 501),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (OFFER.replace(b"\r\n\r\n", b"\r\nA: " + b"x" * 66_000 + b"\r\n\r\n"), 431),
    ],
)
def test_invalid_upgrades_are_rejected(server: Server, head: bytes, status: int) -> None:
    server.transport.feed(head)
    assert server.refused == [status]
    assert not server.requests
    assert server.transport.end == "eof"


def test_http_2_is_answered_in_http_2(server: Server) -> None:
    server.transport.feed(b"PRI * HTTP/2.0\r\n\r\nSM", b"\r\n\r\n" + b"\0" * 9)
    assert server.transport.out == HTTP2_REFUSAL
    assert server.transport.end == "eof"
    assert server.refused == [505]


def test_http_2_behind_a_request_is_malformed(server: Server) -> None:
    server.transport.feed(SLOW + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    server.slow[0][0].send(200, [], b"ok")
    assert b"HTTP/1.1 400 " in server.transport.out
    assert HTTP2_REFUSAL not in server.transport.out


def test_http_2_behind_an_answered_request_is_malformed(server: Server) -> None:
    server.transport.feed(SLOW)
    server.slow[0][0].send(200, [], b"ok")
    server.transport.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert b"HTTP/1.1 400 " in server.transport.out
    assert HTTP2_REFUSAL not in server.transport.out


# bodies in memory --------------------------------------------------------------------------------

TEN = b"Host: a\r\nContent-Length: 10\r\n\r\n0123456789"


def test_a_body_is_held_until_its_request_is_answered(server: Server) -> None:
    server.transport.feed(b"POST /slow HTTP/1.1\r\n" + TEN[:-3])
    assert server.bodies.num_bytes == 7
    server.transport.feed(TEN[-3:] + b"POST /now HTTP/1.1\r\n" + TEN)
    assert server.bodies.num_bytes == 20
    responder, _ = server.slow[0]
    server.bodies.let_go(server.requests[0])  # as its exchange does
    responder.send(200, [], b"")
    assert server.bodies.num_bytes == 0


def test_a_client_that_disconnects_leaves_no_body(server: Server) -> None:
    server.transport.feed(b"POST /slow HTTP/1.1\r\n" + TEN)
    server.transport.feed(b"POST /slow HTTP/1.1\r\n" + TEN)  # queued behind the request before it
    server.transport.feed(b"POST /slow HTTP/1.1\r\n" + TEN[:-3])
    assert server.bodies.num_bytes == 27
    server.transport.lose()
    assert server.slow[0][1].events == ["gone"]
    server.bodies.let_go(server.requests[0])
    assert server.bodies.num_bytes == 0


def test_a_late_body_is_released(server: Server) -> None:
    server.transport.feed(b"POST /now HTTP/1.1\r\n" + TEN[:-3])
    server.loop.advance(LIMITS.body_timeout_s + 60)
    assert server.refused == [408]
    assert server.bodies.num_bytes == 0


def test_a_broken_body_is_released(server: Server) -> None:
    head = b"POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.transport.feed(head + b"3\r\nabc\r\n")
    assert server.bodies.num_bytes == 3
    server.transport.feed(b"what?")
    assert server.refused == [400]
    assert server.bodies.num_bytes == 0


@pytest.mark.parametrize("has_length", [True, False])
def test_a_body_beyond_the_budget_is_rejected_and_not_read(server: Server, has_length: bool) -> None:
    server.bodies.num_bytes = (1 << 30) - 5
    framing = b"Content-Length: 6" if has_length else b"Transfer-Encoding: chunked"
    server.transport.feed(b"POST /now HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n\r\n")
    server.transport.feed(b"" if has_length else b"6\r\nabcdef\r\n")
    assert server.transport.out.startswith(b"HTTP/1.1 503 ")
    for header in (b"retry-after: 1\r\n", b"x-should-retry: true\r\n", b"connection: close\r\n"):
        assert header in server.transport.out
    assert (server.refused, server.requests) == ([503], [])
    assert (server.bodies.num_bytes, server.bodies.num_refused) == ((1 << 30) - 5, 1)


def test_a_body_that_lost_its_room_is_refused_at_its_end(server: Server) -> None:
    head = b"POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.transport.feed(head + b"%x\r\n" % LARGE + b"a" * LARGE)
    (intake,) = server.bodies.arriving
    intake.lose()
    server.transport.feed(b"\r\n0\r\n\r\n")
    assert server.transport.out.startswith(b"HTTP/1.1 503 ")
    assert (server.refused, server.requests, server.bodies.num_bytes) == ([503], [], 0)


def test_a_request_without_a_body_always_fits_the_budget(server: Server) -> None:
    server.bodies.num_bytes = 1 << 30
    server.transport.feed(b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n")
    assert server.transport.out.startswith(b"HTTP/1.1 200 ")
