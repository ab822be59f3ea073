"""Frames: what is written is read again, in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2 import frames
from gateway.server.http2.frames import Frame, FrameReader, Http2Error

FRAMES = st.builds(
    Frame,
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, frames.MAX_STREAM_ID),
    st.binary(max_size=60),
)


def parts(each: Frame) -> tuple[int, int, int, bytes]:
    return each.kind, each.flags, each.stream_id, each.payload


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_frames_are_read_in_any_pieces(sent: list[Frame], cuts: list[int]) -> None:
    whole = b"".join(frames.frame(*parts(each)) for each in sent)
    reader, found = FrameReader(100), []
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for start, end in zip(edges, edges[1:], strict=False):
        reader.feed(whole[start:end])
        while (each := reader.next()) is not None:
            found.append(each)
    assert [parts(each) for each in found] == [parts(each) for each in sent]
    assert reader.num_held == 0 and repr(reader) == "FrameReader(0 bytes held)"


def test_a_frame_that_is_too_long_is_refused_before_it_has_arrived() -> None:
    reader = FrameReader(100)
    reader.feed(frames.head(frames.DATA, 0, 1, 101))
    with pytest.raises(Http2Error, match="a frame of 101 bytes") as caught:
        reader.next()
    assert caught.value.code == frames.FRAME_SIZE_ERROR


def test_the_reserved_bit_is_ignored() -> None:
    reader = FrameReader(100)
    reader.feed(frames.frame(frames.DATA, 0, 0x80000001, b""))
    each = reader.next()
    assert each is not None and each.stream_id == 1 and "Frame(0" in repr(each)


@pytest.mark.parametrize(
    ("payload", "rest"),
    [(b"\0data", b"data"), (b"\x02data\0\0", b"data"), (b"\x04\0\0\0\0", b""), (b"\0", b"")],
)
def test_padding_is_taken_off(payload: bytes, rest: bytes) -> None:
    assert frames.without_padding(Frame(frames.DATA, frames.PADDED, 1, payload)) == rest
    assert frames.without_padding(Frame(frames.DATA, 0, 1, payload)) == payload


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 0xFFFFFFFF)), max_size=5))
def test_settings_are_read_again(values: list[tuple[int, int]]) -> None:
    assert frames.settings_of(frames.settings(values)[9:]) == values


def test_the_text_of_goaway_is_short_and_plain() -> None:
    sent = frames.goaway(7, frames.PROTOCOL_ERROR, "ä" * 300)
    assert sent[9:17] == b"\0\0\0\x07\0\0\0\x01" and sent[17:] == b"?" * 200
