"""Settings of a peer, applied to what is sent. Values out of range are h2spec's (h2spec.py)."""

import pytest

from gateway.server.http2 import frames
from gateway.server.http2.frames import Http2Error
from gateway.server.http2.peer_settings import apply_settings
from gateway.server.http2.send_queue import SendQueue
from gateway.server.http2.stream import Http2Stream


def outgoing() -> SendQueue:
    return SendQueue(b"", lambda stream: None, lambda stream: None)


def payload(*values: tuple[int, int]) -> bytes:
    return frames.settings(list(values))[frames.HEADER_BYTES :]


def test_windows_of_open_streams_change_by_the_difference() -> None:
    out, stream = outgoing(), Http2Stream(1, 65_535, 0)
    apply_settings(payload((4, 70_000), (4, 10)), out, {1: stream})
    assert out.initial_window == 10 and stream.send_window == 10
    stream.send_window = -5
    apply_settings(payload((4, 30)), out, {1: stream})
    assert stream.send_window == 15


def test_a_window_over_its_limit_is_refused() -> None:
    stream = Http2Stream(1, 0x7FFFFFFF, 0)
    with pytest.raises(Http2Error) as caught:
        apply_settings(payload((4, 70_000)), outgoing(), {1: stream})
    assert caught.value.code == frames.FLOW_CONTROL_ERROR


def test_frame_sizes_and_unknown_settings() -> None:
    out = outgoing()
    apply_settings(payload((5, 20_000), (1, 0), (2, 0), (3, 5), (6, 7), (0xF000, 1)), out, {})
    assert out.max_frame_bytes == 20_000
