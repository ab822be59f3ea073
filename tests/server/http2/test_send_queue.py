"""Sending: windows, turns, ends. h2spec's cases of a server's DATA are here (6.9.1.1, 6.9.2.1, 6.9.2.2)."""

from gateway.server.http2.frames import settings, window_update
from gateway.server.http2.send_queue import TAKE_BYTES
from tests.support.http2 import HELLO, Answering, events_of, opened, read, request, words

BIG = 1 << 20


def test_a_window_of_one_byte_gets_one_byte() -> None:
    side = Answering()
    side.feed(HELLO + settings([(4, 1)]) + request())
    assert side.answers() == ["DATA 1 1"]
    side.feed(window_update(1, 2))
    assert side.answers() == ["DATA 1 1", "DATA 1 2"]
    side.feed(window_update(1, 100))
    assert side.answers()[2:] == ["DATA 1 3", "END 1"]


def test_a_larger_initial_window_wakes_streams() -> None:
    side = Answering()
    side.feed(HELLO + settings([(4, 0)]) + request())
    assert side.answers() == []
    side.feed(settings([(4, 1)]))
    assert side.answers() == ["DATA 1 1"]


def test_a_window_may_be_negative() -> None:
    side = Answering()
    side.feed(HELLO + settings([(4, 3)]) + request() + settings([(4, 2)]))
    assert side.answers() == ["DATA 1 2"], "the window shrank before anything was sent"
    side.feed(settings([(4, 0)]) + window_update(1, 2))
    assert side.answers() == ["DATA 1 2"]
    side.feed(window_update(1, 1))
    assert side.answers() == ["DATA 1 2", "DATA 1 1"]


def test_the_connections_window_holds_all_streams_but_not_ends() -> None:
    side = Answering(answer=bytes(40_000))
    side.feed(HELLO + settings([(4, BIG)]) + request(1) + request(3) + opened(5))
    (stream,) = [each for each in side.http2.streams.values() if each.id == 5]
    side.http2.end(stream, b"\x88")
    side.feed(b"")
    answers = side.answers()
    assert sum(int(each.split()[2]) for each in answers if each.startswith("DATA")) == 65_535
    assert "END 5" in answers and "END 3" not in answers
    side.feed(window_update(0, BIG))
    assert {"END 1", "END 3"} <= set(side.answers())


def test_streams_take_turns() -> None:
    side = Answering(answer=bytes(40_000))
    side.feed(HELLO + settings([(4, BIG)]) + window_update(0, BIG) + request(1) + request(3))
    order = [each.stream_id for each in read(side.out) if words(each).startswith("DATA")]
    assert order == [1, 3, 1, 3, 1, 3]


def test_frames_are_as_long_as_the_peer_takes_and_not_longer() -> None:
    for announced, used in ((16_384, 16_384), (40_000, 40_000), (1 << 20, 65_536)):
        side = Answering(answer=bytes(200_000))
        side.feed(HELLO + settings([(4, BIG), (5, announced)]) + window_update(0, BIG) + request())
        assert side.answers()[0] == f"DATA 1 {used}"


def test_one_call_takes_about_what_a_socket_takes() -> None:
    side = Answering(answer=bytes(BIG))
    events_of(side.http2, HELLO + settings([(4, BIG)]) + window_update(0, BIG))
    side.feed(b"")
    for event in events_of(side.http2, request()):
        side.http2.send(event.stream, b"", bytes(BIG))
    first = side.http2.take()
    assert TAKE_BYTES <= len(first) < TAKE_BYTES + 70_000


def test_a_dropped_stream_sends_nothing_and_holds_nothing() -> None:
    side = Answering()
    side.feed(HELLO + opened(1) + opened(3))
    first, second = side.http2.streams.values()
    side.http2.send(first, b"lo", b"st")
    side.http2.send(second, b"se", b"nt")
    side.http2.reset(first, 8)
    side.feed(b"")
    assert side.answers() == ["RST 1 CANCEL", "DATA 3 4"]
    assert side.http2.outgoing.num_waiting == 0 and "0 bytes" in repr(side.http2.outgoing)
