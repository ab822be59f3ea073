"""The state machine of a connection: h2spec's cases, floods, windows, draining."""

import pytest

from gateway.server.http2 import frames
from gateway.server.http2.events import DataCame, RequestBegan, StreamGone
from gateway.server.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    frame,
    rst_stream,
    settings,
    window_update,
)
from gateway.server.http2.limits import Http2Limits
from tests.server.http2.h2spec import (
    CASES,
    CLOSED_CASES,
    ELSEWHERE,
    FIRST_BYTES,
    HALF_CLOSED_CASES,
    SECTIONS,
    Case,
)
from tests.support.http2 import HELLO, POST, Answering, block, data, events_of, opened, read, request, words

SIZES = (1, 2, 7, 1 << 20)
WHOLE = ("generic/2.2", "generic/2.3", "generic/2.4", "generic/2.5")
"""Cases in one piece: their stream must not be answered before the frame behind it comes."""


def ids(case: Case) -> str:
    return case.name


def played(sent: bytes, size: int, side: Answering | None = None) -> Answering:
    """A connection that got these bytes in pieces of this size."""
    side = side or Answering()
    for at in range(0, len(sent), size):
        side.feed(sent[at : at + size])
    return side


def result(side: Answering) -> str:
    answers = side.answers()
    faults = [each for each in answers if each.startswith("GOAWAY") or "ERROR" in each or "CLOSED" in each]
    found = faults[0] if faults else answers[-1] if answers else f"ACK {side.num_acks}"
    assert side.http2.is_over is found.startswith("GOAWAY"), "a connection error closes it, and nothing else"
    return found


def test_each_case_of_h2spec_is_played() -> None:
    played = [each.name.split()[0] for each in [*CASES, *FIRST_BYTES, *HALF_CLOSED_CASES, *CLOSED_CASES]]
    expected = {
        f"{suite}/{section}.{number}"
        for suite, sections in SECTIONS.items()
        for section, count in sections.items()
        for number in range(1, count + 1)
    }
    assert len(played) == len(set(played)) and expected - set(played) == ELSEWHERE
    assert len(expected) == 147


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_cases_of_h2spec_in_all_pieces(case: Case) -> None:
    sent = HELLO + case.sent
    is_whole = case.name.startswith(WHOLE) or len(sent) > 2000
    for size in SIZES[-1:] if is_whole else SIZES:
        assert result(played(sent, size)) == case.result, size


@pytest.mark.parametrize("case", FIRST_BYTES, ids=ids)
@pytest.mark.parametrize("size", SIZES)
def test_first_bytes(case: Case, size: int) -> None:
    assert result(played(case.sent, size)) == case.result


@pytest.mark.parametrize("case", HALF_CLOSED_CASES, ids=ids)
def test_frames_behind_a_request(case: Case) -> None:
    side = Answering()
    events_of(side.http2, HELLO + request())  # without an answer
    side.feed(case.sent)
    assert result(side) == case.result


@pytest.mark.parametrize("case", CLOSED_CASES, ids=ids)
def test_frames_behind_an_answer(case: Case) -> None:
    side = played(HELLO + request(), 1 << 20)
    side.out = b""
    side.feed(case.sent)
    assert result(side) == case.result


def test_the_greeting_announces_the_limits() -> None:
    limits = Http2Limits()
    first, second = read(Answering(limits).http2.take())
    assert first.kind == frames.SETTINGS
    assert dict(frames.settings_of(first.payload)) == {3: 1024, 4: 1 << 20, 5: 65536, 6: 32768}
    assert second.kind == frames.WINDOW_UPDATE
    assert frames.number(second.payload, 0) == limits.connection_window - 65535


def test_events_have_the_requests_parts() -> None:
    side = Answering()
    side.feed(HELLO + opened() + data(1, b"a") + data(1, b"b", is_end=True) + opened(3) + rst_stream(3, 8))
    began, first, second, other, gone = side.events
    assert isinstance(began, RequestBegan) and began.head.headers == list(POST) and not began.is_end
    assert isinstance(first, DataCame) and isinstance(second, DataCame)
    assert (first.data, first.is_end, second.data, second.is_end) == (b"a", False, b"b", True)
    assert isinstance(other, RequestBegan) and isinstance(gone, StreamGone)
    assert gone.stream is other.stream and gone.stream.is_closed and "reset by the client" in gone.why


def test_a_stream_that_we_have_reset_may_still_get_frames() -> None:
    side = Answering()
    side.feed(HELLO + opened())
    (stream,) = side.http2.streams.values()
    side.http2.reset(stream, frames.CANCEL)
    side.feed(data(1, b"late") + frame(HEADERS, 5, 1, block([(b"x", b"y")])) + request(3))
    assert side.answers() == ["RST 1 CANCEL", "DATA 3 6", "END 3"]


def test_streams_over_the_limit_are_refused_and_the_others_go_on() -> None:
    side = Answering(Http2Limits(max_streams=2))
    side.feed(HELLO + opened(1) + opened(3) + opened(5) + data(1, b"", is_end=True) + request(7))
    assert side.answers() == ["RST 5 REFUSED_STREAM", "RST 7 REFUSED_STREAM", "DATA 1 6", "END 1"]
    side.out = b""
    side.feed(request(9))
    assert side.answers() == ["DATA 9 6", "END 9"]


def test_an_answer_before_the_end_of_its_request_resets_the_rest() -> None:
    side = Answering()
    side.feed(HELLO + opened())
    (stream,) = side.http2.streams.values()
    side.http2.end(stream, b"\x88")
    side.feed(b"")
    assert side.answers() == ["END 1", "RST 1 NO_ERROR"] and not side.http2.streams


# floods ----------------------------------------------------------------------------------------

CALM = "GOAWAY ENHANCE_YOUR_CALM"
FLOODS = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "PING answers": frame(PING, 1, 0, bytes(8)),
    "SETTINGS": settings([(4, 65535)]),
    "empty SETTINGS": settings([]),
    "acknowledgements": frame(frames.SETTINGS, 1, 0, b""),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "WINDOW_UPDATE": window_update(0, 1),
    "unknown frames": frame(0xAA, 0, 0, b""),
    "empty DATA": data(1, b""),
    "padding": frame(frames.DATA, frames.PADDED, 1, b"\x00"),
    "RST_STREAM of a closed stream": rst_stream(1, 8),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_end_the_connection(name: str) -> None:
    side = Answering()
    begin = opened() + (rst_stream(1, 8) if name.startswith("RST") else b"")
    side.feed(HELLO + begin)
    side.feed(FLOODS[name] * 9_000 if "SETTINGS" not in name else FLOODS[name] * 900)
    assert CALM not in side.answers(), "a burst passes"
    side.feed(FLOODS[name] * 5_000)
    assert side.answers()[-1] == CALM and side.http2.is_over


def test_slow_frames_without_use_pass() -> None:
    side = Answering()
    side.feed(HELLO)
    for _ in range(40):
        side.now += 1.0
        side.feed(FLOODS["PING"] * 900)
    assert side.http2.fault is None


def test_pings_that_come_with_data_pass() -> None:
    side = Answering()
    side.feed(HELLO + opened())
    for _ in range(12_000):
        side.feed(data(1, b"a") + FLOODS["PING"])
    assert side.http2.fault is None


def test_rapid_resets_end_the_connection() -> None:
    side = Answering()
    side.feed(HELLO)
    side.feed(b"".join(opened(n) + rst_stream(n, 8) for n in range(1, 4000, 2)))
    assert CALM not in side.answers(), "a proxy that stops may reset all its streams"
    side.feed(b"".join(opened(n) + rst_stream(n, 8) for n in range(4001, 5000, 2)))
    assert side.answers()[-1] == CALM


def test_malformed_and_refused_requests_count_as_resets() -> None:
    for limits, bad in ((Http2Limits(), [(b":path", b"")]), (Http2Limits(max_streams=0), list(POST))):
        side = Answering(limits)
        side.feed(HELLO + b"".join(request(n, bad) for n in range(1, 6000, 2)))
        assert side.answers()[-1] == CALM


def test_resets_of_answered_streams_pass() -> None:
    side = Answering()
    side.feed(HELLO)
    for number in range(1, 8_000, 2):
        side.feed(opened(number))
        side.http2.send(side.http2.streams[number], b"a", b"")
        side.feed(data(number, b"a"))
        side.feed(rst_stream(number, 0))
    assert side.http2.fault is None and not side.http2.streams


def test_resets_beside_answered_requests_pass() -> None:
    side = Answering()
    side.feed(HELLO)
    for number in range(1, 12_000, 4):
        side.feed(request(number) + opened(number + 2) + rst_stream(number + 2, 8))
    assert side.http2.fault is None and not side.http2.streams


@pytest.mark.parametrize(
    "flood",
    [
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1, b"") * 20,
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(16_000)) * 3,
        frame(HEADERS, END_HEADERS, 1, bytes(33_000)),
        frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 100),
    ],
    ids=["empty CONTINUATION", "long CONTINUATION", "long HEADERS", "HPACK bomb"],
)
def test_headers_are_bounded(flood: bytes) -> None:
    side = Answering()
    side.feed(HELLO + flood)
    assert side.answers() == [CALM]


def test_answers_that_are_not_read_are_bounded() -> None:
    side = Answering(Http2Limits(max_control_bytes=10_000))
    for _ in range(700):
        events_of(side.http2, HELLO if side.http2.first_bytes == b"" else FLOODS["PING"])  # nothing is taken
    assert side.http2.fault is not None and side.http2.fault.code == frames.ENHANCE_YOUR_CALM
    assert side.http2.outgoing.num_control < 20_000


# windows of the peer ---------------------------------------------------------------------------


def updates(out: bytes) -> list[tuple[int, int]]:
    return [
        (each.stream_id, frames.number(each.payload, 0))
        for each in read(out)
        if each.kind == frames.WINDOW_UPDATE
    ]


def test_data_beyond_a_window_is_refused() -> None:
    small = Http2Limits(stream_window=1000, connection_window=70_000)
    side = Answering(small)
    side.feed(HELLO + opened() + data(1, bytes(400)) + data(1, bytes(601)))
    assert result(side) == "RST 1 FLOW_CONTROL_ERROR"
    side = Answering(Http2Limits(stream_window=1 << 20, connection_window=65_536))
    events_of(side.http2, HELLO + opened())
    side.http2._num_unreported = -(1 << 20)  # no window is given again
    side.feed(data(1, bytes(40_000)) + data(1, bytes(40_000)))
    assert result(side) == "GOAWAY FLOW_CONTROL_ERROR"


def test_received_data_gives_the_window_again() -> None:
    side = Answering(Http2Limits(stream_window=1000, connection_window=70_000))
    side.feed(HELLO + opened())
    side.out = b""
    for _ in range(100):
        side.feed(data(1, bytes(400)))
    assert updates(side.out)[:2] == [(1, 800), (1, 800)]
    assert sum(size for stream_id, size in updates(side.out) if stream_id == 0) >= 35_000
    side.feed(data(1, bytes(500), is_end=True))
    assert updates(side.out)[-1][0] == 0 or updates(side.out)[-1] == (1, 800), "an ended stream needs none"


def test_slow_readers_are_not_read_from() -> None:
    limits = Http2Limits(stream_window=1000, connection_window=70_000, slow_stream_bytes=100)
    side = Answering(limits)
    side.feed(HELLO + settings([(4, 10)]) + opened())
    (stream,) = side.http2.streams.values()
    side.http2.send(stream, bytes(5), bytes(195))
    side.out = b""
    side.feed(data(1, bytes(900)))
    assert updates(side.out) == [] and stream.num_outgoing == 190
    side.feed(window_update(1, 150))
    assert updates(side.out) == [(1, 900)] and stream.num_outgoing == 40


def test_a_connection_with_much_output_is_not_read_from() -> None:
    limits = Http2Limits(connection_window=70_000, slow_connection_bytes=100)
    side = Answering(limits)
    side.feed(HELLO + settings([(4, 0)]) + opened())
    (stream,) = side.http2.streams.values()
    side.http2.send(stream, bytes(5), bytes(195))
    side.out = b""
    side.feed(data(1, bytes(40_000)))
    assert updates(side.out) == []
    side.feed(window_update(1, 150))
    assert updates(side.out) == [(0, 40_000)]


# draining --------------------------------------------------------------------------------------


def last_ids(out: bytes) -> list[int]:
    return [frames.number(each.payload, 0) for each in read(out) if each.kind == frames.GOAWAY]


def test_draining_has_two_phases() -> None:
    side = Answering()
    side.feed(HELLO + opened(1))
    side.http2.drain()
    side.http2.drain()
    side.feed(opened(3))  # on its way before the peer has read GOAWAY
    assert last_ids(side.out) == [0x7FFFFFFF] and len(side.http2.streams) == 2 and not side.http2.is_over
    (ping,) = [each for each in read(side.out) if words(each) == "PING"]
    side.feed(frames.ping(ping.payload, is_ack=True))
    assert last_ids(side.out) == [0x7FFFFFFF, 3]
    side.out = b""
    side.feed(opened(5) + data(1, b"", is_end=True))
    assert side.answers() == ["RST 5 REFUSED_STREAM", "DATA 1 6", "END 1"] and not side.http2.is_over
    side.feed(data(3, b"", is_end=True))
    assert side.http2.is_over


def test_draining_ends_without_the_peers_answer_too() -> None:
    side = Answering()
    side.feed(HELLO)
    side.http2.finish_drain()
    assert not side.http2.is_over, "not without its beginning"
    side.http2.drain()
    side.http2.finish_drain()
    side.http2.finish_drain()
    side.feed(b"")
    assert last_ids(side.out) == [0x7FFFFFFF, 0] and side.http2.is_over
