"""A client's messages are read for models, however they are cut into frames and reads."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.websocket_frames import (
    MAX_MESSAGE_BYTES,
    MAX_OPENED,
    MAX_READ_BYTES,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    TOO_BIG,
    FrameRefused,
    ModelFrames,
    close_frame,
    without_extensions,
)
from tests.support.blackbox.websocket_frames import MASK, frame, text_frame


def refused(*data: bytes) -> int:
    frames = ModelFrames({"m"})
    with pytest.raises(FrameRefused) as caught:
        for each in data:
            frames.feed(each)
    return caught.value.code


SOUND = text_frame(type="input_audio_buffer.append", audio="bW9kZWw" * 3000)


@pytest.mark.parametrize(
    "data",
    [
        text_frame(type="session.update", model="m"),
        text_frame(type="session.update", model=None),
        text_frame(session={"audio": {"input": {"transcription": {"model": "m"}}}}),
        text_frame(type="x", said="no model but \u00e9 here"),
        SOUND,
        frame(b"ping", 9) + frame(b"", 10) + frame(b"\x03\xe8", 8),
        frame(b"x" * 70_000),
        frame(b""),
    ],
)
def test_a_message_without_another_model_passes_unchanged(data: bytes) -> None:
    assert ModelFrames({"m"}).feed(data) == data


@pytest.mark.parametrize(
    "message",
    [
        b'{"type":"session.update","model":"other"}',
        b'{"type":"session.update","model":""}',
        b'{"model":"m","model":"other"}',
        b'{"model":"other","model":"m"}',
        b'{"mod\\u0065l":"other"}',
        b'{"Model":"m"}',
        b'{"model":["m"]}',
        b'{"session":[{"x":{"model":"other"}}]}',
        b'{"model":"m"',
        b'{"model":"m"} \xff',
        b'{"model":' + b"[" * 10_000,
    ],
)
def test_a_message_with_another_model_is_rejected(message: bytes) -> None:
    assert refused(frame(message)) == POLICY_VIOLATION
    half = len(message) // 2
    cut = frame(message[:half], is_last=False) + frame(b"", 9) + frame(message[half:], 0)
    assert refused(*(cut[i : i + 1000] for i in range(0, len(cut), 1000))) == POLICY_VIOLATION


HALF = b"x" * (MAX_MESSAGE_BYTES // 2)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"{}", rsv=0x40), PROTOCOL_ERROR),
        (b"\x81\x02{}", PROTOCOL_ERROR),
        (frame(b"{}", 0), PROTOCOL_ERROR),
        (frame(b"{", is_last=False) + frame(b"}", 1), PROTOCOL_ERROR),
        (frame(b"{}", 2), POLICY_VIOLATION),
        (frame(b'{"model":"m"}' + b" " * MAX_READ_BYTES), TOO_BIG),
        (frame(b'{"model":"m","x":[' + b"[]," * MAX_OPENED + b"0]}"), TOO_BIG),
        (b"\x81\xff" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big") + MASK, TOO_BIG),
        (frame(HALF, is_last=False) + frame(HALF, 0, is_last=False), TOO_BIG),
    ],
    ids=["compressed", "unmasked", "goes on with nothing", "two at once", "binary", "long", "lists", "longer",
         "many"],
)  # fmt: skip
def test_an_unreadable_message_is_rejected(data: bytes, code: int) -> None:
    assert refused(data) == code


@given(st.lists(st.integers(0, 200), max_size=8), st.data())
def test_frames_may_be_split_anywhere(sizes: list[int], data: st.DataObject) -> None:
    whole = b"".join(frame(b"x" * size) + frame(b"", 9) for size in sizes)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    frames = ModelFrames({"m"})
    assert b"".join(frames.feed(whole[a:b]) for a, b in pairwise([0, *cuts, len(whole)])) == whole


def test_a_message_is_held_until_it_is_whole() -> None:
    frames = ModelFrames({"m"})
    first, last = frame(b'{"a":', is_last=False), frame(b"1}", 0)
    assert frames.feed(first) == b""
    assert frames.feed(last[:-1]) == b""
    assert frames.feed(last[-1:]) == first + last


def test_the_close_frame_and_the_offer() -> None:
    assert close_frame(1008, "no") == b"\x88\x04\x03\xf0no"
    assert len(close_frame(1008, "x" * 500)) == 127
    headers = [(b"sec-websocket-extensions", b"permessage-deflate"), (b"sec-websocket-key", b"x")]
    assert without_extensions(headers) == headers[1:]
