"""Connections on a loop without time or sockets: writing, back pressure, silence, draining."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from gateway.runtime.work_slices import SLICE_S
from gateway.server.body_budget import BodyBudget
from gateway.server.http2 import grpc_connection, protocol
from gateway.server.http2.frames import PREFACE, settings, window_update
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.protocol import GrpcProtocol
from gateway.server.http2.service import GrpcStream
from tests.support.http2 import HELLO, EchoHandler, data, message, messages_of, opened, read, request, words
from tests.support.transports import FakeLoop, FakeTimer, FakeTransport

BIG = 1 << 20


class ProtocolWorld:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = FakeLoop.install(monkeypatch)
        self.handlers: list[EchoHandler] = []
        self.faults: list[tuple[str, bytes, str]] = []
        self.open: set[GrpcProtocol] = set()
        self.protocol = GrpcProtocol(
            {b"/test.Echo/Run": self._echo},
            Http2Limits(),
            BodyBudget(),
            self.open,
            lambda *fault: self.faults.append(fault),
            "peer",
        )
        self.transport = FakeTransport(self.protocol)
        self.now, self.costs_s = 0.0, 0.0
        monkeypatch.setattr(grpc_connection, "monotonic", self._clock)

    def _clock(self) -> float:
        """The time, of which each look at the clock takes some."""
        self.now += self.costs_s
        return self.now

    def _echo(self, stream: GrpcStream) -> EchoHandler:
        self.handlers.append(EchoHandler(stream))
        return self.handlers[-1]

    def said(self) -> list[str]:
        return [each for frame in read(self.transport.taken()) if (each := words(frame))]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ProtocolWorld:
    return ProtocolWorld(monkeypatch)


def test_a_read_is_answered_at_once(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO + opened() + data(1, message(b"a"), is_end=True))
    assert world.said() == ["ACK", "DATA 1 6", "END 1"]
    assert world.open == {world.protocol} and "peer" in repr(world.protocol)


def test_output_of_one_iteration_is_written_together(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO + opened(1) + opened(3))
    world.said()
    for handler in world.handlers:
        handler.stream.send(b"a")
        handler.stream.send(b"b")
    assert world.transport.out == b"" and world.protocol.num_streams == 2
    world.loop.advance(0)
    assert world.said() == ["DATA 1 12", "DATA 3 12"]


def test_a_full_socket_gets_nothing_more(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO + settings([(4, BIG)]) + window_update(0, BIG) + opened())
    world.protocol.pause_writing()
    world.handlers[0].stream.send(b"a" * 1000)
    world.loop.advance(0)
    world.said()
    world.transport.feed(data(1, message(b"more")))
    assert world.said() == []
    world.protocol.resume_writing()
    assert messages_of(world.transport.taken()) == {1: [b"a" * 1000, b"more"]}


def slow(world: ProtocolWorld, num: int, *, is_end: bool = False) -> list[str]:
    """Feed a frame with messages, of which four take longer than a slice; returns their texts."""
    texts = [str(each) for each in range(num)]
    frame = data(1, b"".join(message(each.encode()) for each in texts), is_end=is_end)
    world.transport.feed(HELLO + opened())
    world.costs_s = 0.3 * SLICE_S
    world.transport.feed(frame)
    return texts


def test_messages_of_one_frame_have_turns(world: ProtocolWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, call_soon = [0], world.loop.call_soon

    def counted(callback: Callable[[], object]) -> FakeTimer:
        counts.append(len(world.handlers[0].events))
        assert not world.transport.is_reading, "more is read meanwhile"
        return call_soon(callback)

    monkeypatch.setattr(world.loop, "call_soon", counted)
    texts = slow(world, 1000, is_end=True)
    world.loop.advance(0)
    assert max(after - before for before, after in pairwise(counts)) <= 5
    assert world.handlers[0].events == [*texts, "END"] and world.transport.is_reading
    assert messages_of(world.transport.taken()) == {1: [each.encode() for each in texts]}


def test_bytes_behind_messages_that_wait_come_after_them(world: ProtocolWorld) -> None:
    """A transport may give what it had read before it was paused."""
    texts = slow(world, 20)
    world.transport.feed(data(1, message(b"last")), data(1, b"", is_end=True))
    world.loop.advance(0)
    assert world.handlers[0].events == [*texts, "last", "END"] and world.transport.is_reading


def test_messages_that_wait_end_with_their_connection(world: ProtocolWorld) -> None:
    slow(world, 20)
    world.transport.lose()
    world.loop.advance(0)
    events = world.handlers[0].events
    assert len(events) < 10 and events[-1] == "aborted: the connection is lost"


def test_messages_behind_the_end_of_a_call_are_dropped(world: ProtocolWorld) -> None:
    slow(world, 20)
    world.handlers[0].stream.finish(9, "enough")
    world.loop.advance(0)
    assert len(world.handlers[0].events) < 10 and world.transport.is_reading


def test_a_lost_connection_aborts_its_calls(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO + opened())
    stream = world.handlers[0].stream
    world.transport.lose()
    assert world.handlers[0].events == ["aborted: the connection is lost"] and not world.open
    stream.send(b"late")
    world.loop.advance(100)
    assert not world.faults


def test_faults_are_reported_once_and_close_the_connection(world: ProtocolWorld) -> None:
    world.transport.feed(b"GET / HTTP/1.1\r\n\r\n", b"more")
    assert world.transport.end == "closed"
    assert world.faults == [("peer", b"GET / HTTP/1.1\r\n\r\n", "the first bytes are not an HTTP/2 preface")]


def test_a_client_that_does_not_begin_is_closed(world: ProtocolWorld) -> None:
    world.transport.feed(PREFACE[:5])
    world.loop.advance(protocol.FIRST_BYTES_S - 1)
    assert world.transport.end == ""
    world.loop.advance(2)
    assert world.transport.end == "aborted" and world.faults[0][1] == PREFACE[:5]


def test_a_silent_client_is_asked_and_then_cut(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO)
    world.said()
    world.loop.advance(protocol.SILENCE_S)
    assert world.said() == ["PING"]
    world.transport.feed(request())
    world.loop.advance(protocol.PONG_S + 1)
    assert world.transport.end == "" and "PING" not in world.said()
    world.loop.advance(protocol.SILENCE_S)
    assert world.said() == ["PING"]
    world.loop.advance(protocol.PONG_S + 1)
    assert world.transport.end == "aborted" and "no answer to PING" in world.faults[0][2]


def test_draining_waits_for_streams_and_closes(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO + opened())
    world.said()
    world.protocol.leave()
    world.protocol.leave()
    assert world.said() == ["GOAWAY NO_ERROR", "PING"]
    world.loop.advance(protocol.DRAIN_PONG_S)
    assert world.said() == ["GOAWAY NO_ERROR"] and world.transport.end == ""
    world.transport.feed(data(1, b"", is_end=True))
    assert world.said() == ["END 1"] and world.transport.end == "closed"


def test_draining_an_idle_connection_closes_it(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO)
    world.protocol.leave()
    world.loop.advance(protocol.DRAIN_PONG_S)
    assert world.transport.end == "closed"


def test_abort_ends_what_is_left(world: ProtocolWorld) -> None:
    world.transport.feed(HELLO + opened())
    world.protocol.abort()
    assert world.handlers[0].events == ["aborted: the server stops"] and world.transport.end == "aborted"
