"""Frames of HTTP/2 (RFC 9113, 4 and 6): read from bytes in any pieces, and written.

length 24 | kind 8 | flags 8 | reserved 1, stream 31 | payload
"""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
PRIORITIZED: Final = 32

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

HEADER_BYTES: Final = 9
DEFAULT_FRAME_BYTES: Final = 16384
"""Largest payload that a peer takes before it announces another size."""

MAX_STREAM_ID: Final = 0x7FFFFFFF

_PAIR: Final = struct.Struct(">HL")


class Http2Error(Exception):
    """A fault that ends the connection: `code` goes into GOAWAY, the text into the log."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Frame:
    """Received frame."""

    __slots__ = ("kind", "flags", "stream_id", "payload")

    def __init__(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.stream_id = stream_id
        self.payload = payload

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.flags:#x}, {self.stream_id}, {self.payload[:40]!r})"


class FrameReader:
    """Cuts bytes into frames."""

    __slots__ = ("_data", "_at", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        """Start without bytes; `max_bytes` is the largest payload, as announced to the peer."""
        self._data = b""
        self._at = 0
        self._max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"FrameReader({self.num_held} bytes held)"

    @property
    def num_held(self) -> int:
        return len(self._data) - self._at

    def drop(self) -> None:
        self._data, self._at = b"", 0

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        if self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def next(self) -> Frame | None:
        """Return the next whole frame. Raises Http2Error for one that is too long, before it has arrived."""
        data, at = self._data, self._at
        num_left = len(data) - at
        if num_left < HEADER_BYTES:
            if num_left == 0:
                self._data, self._at = b"", 0
            return None
        size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
        if size > self._max_bytes:
            raise Http2Error(FRAME_SIZE_ERROR, f"a frame of {size} bytes; at most {self._max_bytes}")
        if num_left < HEADER_BYTES + size:
            return None
        stream_id = number(data, at + 5) & MAX_STREAM_ID
        start = at + HEADER_BYTES
        self._at = start + size
        return Frame(data[at + 3], data[at + 4], stream_id, data[start : start + size])


def number(data: bytes, at: int) -> int:
    """Return the 32-bit number at a place."""
    return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


def without_padding(frame: Frame) -> bytes:
    """Return a DATA or HEADERS payload without its padding. Raises Http2Error for padding over its length."""
    payload = frame.payload
    if not frame.flags & PADDED:
        return payload
    if not payload:
        raise Http2Error(FRAME_SIZE_ERROR, "a padded frame without its padding's length")
    num_padding = payload[0]
    if num_padding >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "padding over the frame's length")
    return payload[1 : len(payload) - num_padding]


def head(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """Return the first nine bytes of a frame with a payload of `size` bytes."""
    return (size << 16 | kind << 8 | flags).to_bytes(5, "big") + stream_id.to_bytes(4, "big")


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return head(kind, flags, stream_id, len(payload)) + payload


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def settings(values: list[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_PAIR.pack(name, value) for name, value in values]))


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings of a payload. Raises Http2Error where its length is no multiple of 6."""
    if len(payload) % 6:
        raise Http2Error(FRAME_SIZE_ERROR, "a SETTINGS frame with a part of a setting")
    return [(payload[at] << 8 | payload[at + 1], number(payload, at + 2)) for at in range(0, len(payload), 6)]


def ping(data: bytes, *, is_ack: bool = False) -> bytes:
    return frame(PING, ACK if is_ack else 0, 0, data)


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    numbers = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big")
    return frame(GOAWAY, 0, 0, numbers + text.encode("ascii", "replace")[:200])
