"""Settings of a peer (RFC 9113, 6.5.2): checked, and applied to what is sent to it."""

from typing import Final

from gateway.server.http2.frames import (
    DEFAULT_FRAME_BYTES,
    FLOW_CONTROL_ERROR,
    PROTOCOL_ERROR,
    Http2Error,
    settings_of,
)
from gateway.server.http2.send_queue import SendQueue
from gateway.server.http2.stream import Http2Stream

ENABLE_PUSH: Final = 2
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_WINDOW: Final = 0x7FFFFFFF
MAX_FRAME: Final = 0xFFFFFF

USED_FRAME_BYTES: Final = 65536
"""Frames are not longer than that: streams take turns."""


def apply_settings(payload: bytes, outgoing: SendQueue, streams: dict[int, Http2Stream]) -> None:
    """Apply a SETTINGS frame. Raises Http2Error for values out of range."""
    window = outgoing.initial_window
    for name, value in settings_of(payload):
        if name == ENABLE_PUSH:
            if value > 1:
                raise Http2Error(PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        elif name == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE over 2^31-1")
            window = value
        elif name == MAX_FRAME_SIZE:
            if value < DEFAULT_FRAME_BYTES or value > MAX_FRAME:
                raise Http2Error(PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            outgoing.max_frame_bytes = min(value, USED_FRAME_BYTES)
    if window != outgoing.initial_window:  # once: it touches each stream
        _resize(window, outgoing, streams)


def _resize(value: int, outgoing: SendQueue, streams: dict[int, Http2Stream]) -> None:
    """Change each stream's window by the difference; it may become negative (RFC 9113, 6.9.2)."""
    more = value - outgoing.initial_window
    outgoing.initial_window = value
    for stream in streams.values():
        stream.send_window += more
        if stream.send_window > MAX_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "a stream's window over 2^31-1")
        if more > 0 and stream.num_outgoing:
            outgoing.wake(stream)
