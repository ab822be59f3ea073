"""Keep-alive comments: a table of what comes when, on a clock moved by hand."""

import asyncio
from typing import cast

import pytest

from gateway.core.errors import NoWorker
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.proxy.stream_keepalive import COMMENT, MAX_BODY_BYTES, KeptAliveResponder, takes_comments
from gateway.requests.parsing import BodyRules, parse_request
from gateway.server.responder import Responder
from tests.support.recorded_wire import RecordedWire
from tests.support.transports import FakeLoop

QUIET_S = 10.0
STREAM = ResponseHead(200, [(b"content-type", b"text/event-stream")])
EVENT = b"data: 1\n\n"


class KeepaliveWorld:
    def __init__(self, path: bytes = b"/v1/completions") -> None:
        self.wire, self.loop = RecordedWire(), FakeLoop()
        self.wire.peername = ("10.0.0.1", 5)
        http = HttpRequest("POST", path, [], is_http10=True)  # without chunks: easier to read
        first = Responder(self.wire, http, [(b"a", b"standing")])
        first.more_headers.append((b"b", b"more"))
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.responder = KeptAliveResponder(first, b"id-1", QUIET_S, loop)

    def advance(self, seconds: float) -> bytes:
        """Bytes written meanwhile."""
        self.loop.advance(seconds)
        return self.written()

    def written(self) -> bytes:
        out = b"".join(self.wire.writes)
        self.wire.writes.clear()
        return out

    def open(self) -> None:
        assert self.advance(QUIET_S).endswith(b"\r\n\r\n" + COMMENT)


def is_at_rest(world: KeepaliveWorld) -> bool:
    return not [timer for timer in world.loop.timers if not timer.is_cancelled]


def test_a_quiet_stream_is_opened_and_kept_alive() -> None:
    world = KeepaliveWorld()
    assert world.advance(QUIET_S - 0.1) == b""
    head, _, rest = world.advance(0.1).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and rest == COMMENT
    for header in (b"content-type: text/event-stream; charset=utf-8", b"x-request-id: id-1"):
        assert header in head.split(b"\r\n")
    assert b"\r\na: standing" in head and b"\r\nb: more" in head and b"request-id" in head
    assert world.advance(3 * QUIET_S) == 3 * COMMENT
    world.responder.head(STREAM)
    world.responder.data(EVENT)
    assert world.written() == EVENT, "the worker's head is not sent again"
    assert world.advance(QUIET_S - 0.1) == b""
    world.responder.end(EVENT)
    assert world.advance(100.0) == EVENT and is_at_rest(world)


def test_a_stream_that_moves_gets_no_comment() -> None:
    world = KeepaliveWorld()
    world.responder.head(STREAM)
    for _ in range(5):
        world.responder.data(EVENT)
        assert COMMENT not in world.advance(QUIET_S - 0.1)
    assert world.advance(0.2) == COMMENT


def test_no_comment_divides_an_event() -> None:
    world = KeepaliveWorld()
    world.responder.head(STREAM)
    world.responder.data(b"data: half")
    assert world.written().endswith(b"data: half") and world.advance(5 * QUIET_S) == b""
    world.responder.data(b" of it\r\n\r\n")
    assert world.written() and world.advance(2 * QUIET_S).startswith(COMMENT)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_comment_follows_events_and_comments_of_any_line_end(end: bytes) -> None:
    world = KeepaliveWorld()
    world.responder.head(STREAM)
    for passed in (b": ping" + end, b"data: 1" + end + end, b"data: 2" + end + end + b": ping" + end):
        world.responder.data(passed)
        assert world.written().endswith(passed) and world.advance(QUIET_S) == COMMENT


def test_an_answer_that_is_no_stream_passes_unchanged() -> None:
    world = KeepaliveWorld()
    world.responder.head(ResponseHead(400, [(b"content-type", b"application/json")], 2))
    world.responder.data(b"{")
    assert COMMENT not in world.advance(5 * QUIET_S) and is_at_rest(world)
    world.responder.end(b"}")
    assert world.written() == b"}"


def test_an_error_of_the_gateway_before_the_head_keeps_its_status() -> None:
    world = KeepaliveWorld()
    world.responder.fail(NoWorker("none is up", retry_after_s=2), [(b"x-request-id", b"id-1")])
    assert world.written().startswith(b"HTTP/1.1 503 ") and is_at_rest(world)


@pytest.mark.parametrize(
    ("path", "begins"), [(b"/v1/completions", b'data: {"error"'), (b"/v1/messages", b"event: error\ndata: ")]
)
def test_a_later_error_of_the_gateway_is_an_event(path: bytes, begins: bytes) -> None:
    world = KeepaliveWorld(path)
    world.open()
    assert not world.responder.has_begun, "the exchange may still answer with an error"
    world.responder.fail(NoWorker("none is up"), [(b"x-request-id", b"id-1")])
    out = world.written()
    assert out.startswith(begins) and out.endswith(b"\n\n") and b"none is up" in out and is_at_rest(world)
    assert world.wire.kept_alive == [False]


def test_a_later_error_of_the_worker_is_an_event() -> None:
    world = KeepaliveWorld()
    world.open()
    world.responder.head(ResponseHead(400, [(b"content-type", b"application/json")], 40))
    world.responder.data(b'{"error": {"message": "too ')
    assert world.advance(QUIET_S) == COMMENT
    world.responder.end(b'long", "code": 400}}')
    assert world.written() == b'data: {"error":{"message":"too long","code":400}}\n\n' and is_at_rest(world)


def test_the_error_of_a_worker_is_kept_up_to_a_size() -> None:
    world = KeepaliveWorld()
    world.open()
    world.responder.head(ResponseHead(500, []))
    for _ in range(20):
        world.responder.data(b"x" * MAX_BODY_BYTES)
    assert world.responder._body is not None and len(world.responder._body) == MAX_BODY_BYTES
    world.responder.end()
    assert len(world.written()) < 5000


def test_nothing_is_sent_to_a_client_that_is_gone_or_full() -> None:
    world = KeepaliveWorld()
    world.wire.is_full = True
    assert world.advance(5 * QUIET_S) == b""
    world.wire.is_full = False
    world.open()
    world.wire.peername = None
    assert world.advance(5 * QUIET_S) == b"" and is_at_rest(world)


def test_an_aborted_stream_gets_no_more() -> None:
    world = KeepaliveWorld()
    world.open()
    world.responder.abort()
    assert world.advance(5 * QUIET_S) in (b"CUT", b"RESET") and is_at_rest(world)


@pytest.mark.parametrize(
    ("path", "body", "takes"),
    [
        ("/v1/completions", b'{"model":"m","prompt":"x","stream":true}', True),
        ("/v1/completions", b'{"model":"m","prompt":"x"}', False),
        ("/v1/chat/completions", b'{"model":"m","messages":[],"stream":true}', True),
        ("/v1/messages", b'{"model":"m","messages":[],"stream":true}', True),
        ("/v1/responses", b'{"model":"m","input":"x","stream":true}', True),
        ("/generate", b'{"text":"x","stream":true}', True),
        ("/generate", b'{"text":"x"}', False),
        ("/v1/embeddings", b'{"model":"m","input":"x","stream":true}', False),
        ("/v1/audio/speech", b'{"model":"m","stream":true}', False),
    ],
)
def test_only_event_streams_take_comments(path: str, body: bytes, takes: bool) -> None:
    assert takes_comments(parse_request(path, body, rules=BodyRules(default="m"))) is takes
