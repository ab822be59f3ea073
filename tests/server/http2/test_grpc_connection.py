"""Streams become calls: the table at the top of grpc_connection.py, and handlers in all their moments."""

import gc
import logging
import weakref
from collections.abc import Callable

import pytest

from gateway.server.body_budget import BodyBudget
from gateway.server.http2.frames import END_STREAM, rst_stream
from gateway.server.http2.grpc_connection import Call, GrpcConnection
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.service import GrpcStream
from gateway.server.http2.stream import Http2Stream
from tests.support.http2 import (
    HELLO,
    POST,
    EchoHandler,
    GrpcTimer,
    data,
    headers_of,
    message,
    messages_of,
    opened,
    read,
    request,
    with_path,
    words,
)


class Side:
    """A connection with the Echo service, and one that fails at once."""

    def __init__(self, limits: Http2Limits | None = None, bodies: BodyBudget | None = None) -> None:
        self.bodies = bodies or BodyBudget()
        self.handlers: list[EchoHandler] = []
        self.timers: list[GrpcTimer] = []
        self.num_outputs = 0
        services = {b"/test.Echo/Run": self._echo, b"/test.Broken/Run": self._broken}
        self.grpc = GrpcConnection(
            services, limits or Http2Limits(), self.bodies, self._later, self._has_output
        )
        self.out = b""
        self.feed(HELLO)

    def _echo(self, stream: GrpcStream) -> EchoHandler:
        self.handlers.append(EchoHandler(stream))
        return self.handlers[-1]

    def _broken(self, stream: GrpcStream) -> EchoHandler:
        raise ValueError("a bug")

    def _later(self, seconds: float, callback: Callable[[], None]) -> GrpcTimer:
        self.timers.append(GrpcTimer(seconds, callback))
        return self.timers[-1]

    def _has_output(self) -> None:
        self.num_outputs += 1

    def feed(self, sent: bytes) -> None:
        self.grpc.receive(sent, 0.0)
        while self.grpc.has_rest:
            self.grpc.hand_out()
        self.take()

    def take(self) -> None:
        while out := self.grpc.http2.take():
            self.out += out

    def status(self, stream_id: int = 1) -> str:
        """The gRPC status of a stream, and its text."""
        found = dict(headers_of(self.out)[stream_id])
        return f"{found[b'grpc-status'].decode()} {found.get(b'grpc-message', b'').decode()}".strip()


def test_messages_go_both_ways_in_any_pieces() -> None:
    sent = message(b"one") + message(b"") + message(b"three")
    for size in (1, 3, 1000):
        side = Side()
        side.feed(opened())
        for at in range(0, len(sent), size):
            side.feed(data(1, sent[at : at + size]))
        side.feed(data(1, b"", is_end=True))
        assert messages_of(side.out) == {1: [b"one", b"", b"three"]}
        assert side.handlers[0].events == ["one", "", "three", "END"]
        assert side.status() == "0" and side.grpc.num_partial == 0
        assert headers_of(side.out)[1][:2] == [(b":status", b"200"), (b"content-type", b"application/grpc")]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (opened(1, with_path(b"/test.No/Run")), "12 there is no method /test.No/Run"),
        (request(1, with_path(b"/test.No/Run")), "12 there is no method /test.No/Run"),
        (opened() + data(1, b"\x01\0\0\0\x01a"), "12 compressed messages are not supported"),
        (
            opened() + data(1, b"\0\xff\xff\xff\xff"),
            "8 a message of 4294967295 bytes; at most 73400320 are read",
        ),
        (opened() + data(1, b"\0\0\0\0\x05a", is_end=True), "13 the stream ended within a message"),
        (opened(1, [*POST, (b"grpc-timeout", b"soon")]), "13 malformed grpc-timeout"),
        (opened() + data(1, message(b"finish")), "9 enough"),
    ],
)
def test_faults_have_their_status(sent: bytes, status: str) -> None:
    side = Side()
    side.feed(sent)
    assert side.status() == status
    for handler in side.handlers:
        assert handler.events[-1:] == ["finish"] or handler.events[-1].startswith("aborted"), (
            "it learns of the end"
        )
    side.feed(request(3))
    assert side.status(3) == "0", "the connection lives"


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ((b":method", b"GET"), b"405"),
        ((b"content-type", b"application/json"), b"415"),
        ((b"content-type", b""), b"415"),
    ],
)
def test_requests_that_are_not_grpc(changed: tuple[bytes, bytes], status: bytes) -> None:
    side = Side()
    side.feed(request(1, [changed if name == changed[0] else (name, value) for name, value in POST]))
    assert headers_of(side.out) == {1: [(b":status", status)]} and not side.handlers


def test_a_finished_call_ignores_what_follows() -> None:
    side = Side()
    side.feed(opened() + data(1, message(b"finish") + message(b"more")) + data(1, message(b"and more")))
    assert side.handlers[0].events == ["finish"]
    side.handlers[0].stream.send(b"late")
    side.handlers[0].stream.finish(0)
    side.take()
    assert [words(each) for each in read(side.out)][-2:] == ["END 1", "RST 1 NO_ERROR"]


def test_a_reset_aborts_the_handler_once() -> None:
    side = Side()
    side.feed(opened() + data(1, b"\0\0\0\0\x09half"))
    assert side.grpc.num_partial == 9
    side.feed(rst_stream(1, 8))
    side.grpc.abort("again")
    assert side.handlers[0].events == ["aborted: reset by the client (8)"]
    assert side.grpc.num_partial == 0 and not side.grpc.http2.streams
    side.handlers[0].stream.send(b"late")
    assert side.grpc.http2.take() == b""


def test_a_deadline_ends_the_call() -> None:
    side = Side()
    timed = [*POST, (b"grpc-timeout", b"250m")]
    side.feed(opened(1, timed) + opened(3, timed) + data(3, b"", is_end=True))
    assert [timer.seconds for timer in side.timers] == [0.25, 0.25]
    assert [timer.is_cancelled for timer in side.timers] == [False, True]
    side.timers[0].callback()
    side.timers[0].callback()
    side.take()
    assert side.status() == "4 deadline exceeded" and side.num_outputs == 1
    assert side.handlers[0].events == ["aborted: deadline exceeded"]


@pytest.mark.parametrize(
    "sent", [opened() + data(1, message(b"raise")), opened(1, with_path(b"/test.Broken/Run"))]
)
def test_a_handler_that_raises_ends_its_stream_alone(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    side = Side()
    side.feed(sent + request(3))
    assert side.status() == "13 internal error" and side.status(3) == "0"
    assert "handler failed; stream ended" in caplog.text and "a bug" in caplog.text


def test_output_between_two_reads_is_announced() -> None:
    side = Side()
    side.feed(opened())
    assert side.num_outputs == 0
    side.handlers[0].stream.send(b"later")
    side.handlers[0].stream.finish(0)
    assert side.num_outputs == 2
    side.take()
    assert messages_of(side.out) == {1: [b"later"]}


def test_incomplete_messages_of_a_connection_are_bounded() -> None:
    side = Side(Http2Limits(max_partial_bytes=100))
    half = b"\0\0\0\0\x64" + bytes(45)
    side.feed(opened(1) + data(1, half) + opened(3) + data(3, half))
    assert side.grpc.num_partial == 100
    side.feed(opened(5) + data(5, half))
    assert side.status(5) == "8 too many incomplete messages in one connection"
    assert side.grpc.num_partial == 100
    side.feed(data(1, bytes(55)))
    assert messages_of(side.out) == {1: [bytes(100)]} and side.grpc.num_partial == 50


def test_incomplete_messages_of_all_connections_count_as_bodies() -> None:
    bodies = BodyBudget(150)
    first, second = Side(bodies=bodies), Side(bodies=bodies)
    half = b"\0\0\0\0\x64" + bytes(45)
    for side in (first, second):
        side.feed(opened(1) + data(1, half))
    bodies.num_bytes += 50  # of a request
    second.feed(data(1, bytes(1)))
    assert second.status().startswith("8 the gateway is at its limit of request body memory")
    assert bodies.num_bytes == 100 and bodies.num_refused == 1
    first.feed(data(1, bytes(55)))
    assert messages_of(first.out) == {1: [bytes(100)]} and bodies.num_bytes == 50
    first.feed(opened(3) + data(3, half))
    first.grpc.close("lost")
    assert bodies.num_bytes == 50


def test_a_message_that_comes_too_slowly_ends_its_call() -> None:
    side = Side(Http2Limits(message_timeout_s=10, min_message_rate=2))
    begun = b"\0\0\0\1\0" + bytes(15)
    side.feed(opened(1) + data(1, begun) + opened(3) + data(3, begun) + opened(5) + data(5, message(b"a")))
    assert [timer.seconds for timer in side.timers] == [10], "a timer for all"
    side.timers.pop().callback()
    side.feed(data(1, bytes(19)) + data(3, bytes(20)))
    assert 1 not in messages_of(side.out), "each has its time"
    side.timers.pop().callback()
    side.take()
    assert side.status(1) == "4 the rest of a message arrives too slowly"
    assert side.handlers[0].events == ["aborted: the rest of a message arrives too slowly"]
    assert list(side.grpc.http2.streams) == [3, 5] and side.bodies.num_bytes == side.grpc.num_partial == 40
    side.feed(data(3, bytes(256 - 35) + begun))
    side.timers.pop().callback()
    assert 3 in side.grpc.http2.streams, "the next message has its own time"
    side.feed(data(3, bytes(256 - 15)))
    side.timers.pop().callback()
    assert not side.timers and side.bodies.num_bytes == 0


def test_a_lost_connection_has_no_timer() -> None:
    side = Side()
    side.feed(opened(1) + data(1, b"\0\0\0\0\x09half"))
    side.grpc.close("lost")
    assert side.timers[0].is_cancelled


def test_a_connection_error_aborts_all_calls(caplog: pytest.LogCaptureFixture) -> None:
    side = Side()
    side.feed(opened(1) + opened(3) + data(0, b""))
    assert [handler.events for handler in side.handlers] == [
        ["aborted: connection error: frame 0 for stream 0, which is idle"]
    ] * 2
    assert side.grpc.http2.is_over and "connection error" not in caplog.text
    side.feed(request(5))
    assert len(side.handlers) == 2, "nothing is read any more"


def test_neither_streams_nor_connections_leave_cycles() -> None:
    """The collector does not look for them: runtime/gc_policy.py."""
    gc.disable()
    try:
        side = Side()
        side.feed(request(1) + opened(3) + opened(5) + rst_stream(5, 8) + opened(7))
        side.handlers[1].stream.finish(9)
        side.take()
        calls = [weakref.ref(handler) for handler in side.handlers[:3]]
        side.handlers[:3] = []
        assert [call() for call in calls] == [None] * 3
        last = weakref.ref(side.handlers[0])
        side.handlers.clear()
        side.grpc.close("lost")
        assert last() is None
    finally:
        gc.enable()


def test_a_handler_that_fails_at_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    side = Side()
    side.feed(opened(1) + opened(3))

    def fails(why: str) -> None:
        raise ValueError("another bug")

    side.handlers[0].aborted = fails  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        side.grpc.close("lost")
    assert "handler failed at its end" in caplog.text
    assert side.handlers[1].events == ["aborted: lost"]


def one_call() -> tuple[GrpcConnection, Call]:
    grpc = GrpcConnection({}, Http2Limits(), BodyBudget(), GrpcTimer, lambda: None)
    stream = Http2Stream(1, 1000, 0)
    grpc.http2.streams[1] = stream
    grpc.http2.take()
    return grpc, Call(grpc, stream, b"/a/b", [], 100)


def test_an_end_without_messages_is_one_frame() -> None:
    grpc, one = one_call()
    one.finish(5, "not here")
    out = grpc.http2.take()
    first = read(out)[0]
    assert first.flags & END_STREAM and dict(headers_of(out)[1]) == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"5",
        b"grpc-message": b"not here",
    }


def test_a_call_that_is_over_lets_go_of_its_handler_and_timer() -> None:
    grpc, one = one_call()
    one.handler, timer = EchoHandler(one), GrpcTimer(1.0, one.late)
    one.timer = timer
    one.finish(0)
    assert one.handler is None and one.timer is None and timer.is_cancelled
    one.abort("late")
    one.late()
    assert "over=True" in repr(one)


def test_a_handler_is_aborted_once() -> None:
    _, one = one_call()
    handler = one.handler = EchoHandler(one)
    one.abort("gone")
    one.abort("gone again")
    assert handler.events == ["aborted: gone"]
