"""Header blocks: put together from fragments, and written.

What is written uses static entries and literals only: answers of gRPC are two constant blocks, and a peer's
table stays empty.
"""

from gateway.server.http2.frames import (
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    MAX_STREAM_ID,
    PADDED,
    PRIORITIZED,
    PROTOCOL_ERROR,
    Frame,
    Http2Error,
    number,
    without_padding,
)


class BlockIntake:
    """Header block that may arrive in fragments; `first` is its HEADERS until it is whole."""

    __slots__ = ("first", "_parts", "_num_bytes", "_max_bytes", "_max_parts")

    def __init__(self, max_bytes: int, max_parts: int) -> None:
        self.first: Frame | None = None
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._max_bytes = max_bytes
        self._max_parts = max_parts

    def __repr__(self) -> str:
        return f"BlockIntake({self.first}, {self._num_bytes} bytes)"

    def begin(self, frame: Frame) -> bytes | None:
        """Return the block of a HEADERS frame; None where the rest follows. Raises Http2Error."""
        fragment = frame.payload
        if frame.flags & (PADDED | PRIORITIZED):
            fragment = _fragment(frame)
        if frame.flags & END_HEADERS and len(fragment) <= self._max_bytes:
            return fragment
        self.first = frame
        self._num_bytes = 0
        return self._take(frame, fragment)

    def add(self, frame: Frame) -> bytes | None:
        """Return the block that a CONTINUATION completes; None where more follows. Raises Http2Error."""
        return self._take(frame, frame.payload)

    def _take(self, frame: Frame, fragment: bytes) -> bytes | None:
        self._num_bytes += len(fragment)
        self._parts.append(fragment)
        if self._num_bytes > self._max_bytes or len(self._parts) > self._max_parts:
            raise Http2Error(ENHANCE_YOUR_CALM, "a header block that is too large, or in too many parts")
        if not frame.flags & END_HEADERS:
            return None
        self.first = None
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _fragment(frame: Frame) -> bytes:
    """Return what a HEADERS frame has of its block."""
    fragment = without_padding(frame)
    if not frame.flags & PRIORITIZED:
        return fragment
    if len(fragment) < 5:
        raise Http2Error(FRAME_SIZE_ERROR, "HEADERS without a priority's 5 bytes")
    if number(fragment, 0) & MAX_STREAM_ID == frame.stream_id:
        raise Http2Error(PROTOCOL_ERROR, "a stream that depends on itself")
    return fragment[5:]


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header that enters no table."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    """Return a string's length, without Huffman coding (RFC 7541, 5.1 and 5.2)."""
    if size < 127:
        return bytes([size])
    size -= 127
    octets = [127]
    while size >= 128:
        octets.append(size & 127 | 128)
        size >>= 7
    octets.append(size)
    return bytes(octets)
