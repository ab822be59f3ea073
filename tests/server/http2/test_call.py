"""Calls at their edges; tests/server/http2/test_grpc_connection.py has the rest."""

from gateway.server.body_budget import BodyBudget
from gateway.server.http2.call import Call
from gateway.server.http2.frames import END_STREAM
from gateway.server.http2.grpc_connection import GrpcConnection
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.stream import Http2Stream
from tests.support.http2 import EchoHandler, GrpcTimer, headers_of, read


def call() -> tuple[GrpcConnection, Call]:
    grpc = GrpcConnection({}, Http2Limits(), BodyBudget(), GrpcTimer, lambda: None)
    stream = Http2Stream(1, 1000, 0)
    grpc.http2.streams[1] = stream
    grpc.http2.take()
    return grpc, Call(grpc, stream, b"/a/b", [], 100)


def test_an_end_without_messages_is_one_frame() -> None:
    grpc, one = call()
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
    grpc, one = call()
    one.handler, timer = EchoHandler(one), GrpcTimer(1.0, one.late)
    one.timer = timer
    one.finish(0)
    assert one.handler is None and one.timer is None and timer.is_cancelled
    one.abort("late")
    one.late()
    assert "over=True" in repr(one)


def test_a_handler_is_aborted_once() -> None:
    _, one = call()
    handler = one.handler = EchoHandler(one)
    one.abort("gone")
    one.abort("gone again")
    assert handler.events == ["aborted: gone"]
