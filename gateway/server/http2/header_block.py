"""Header blocks: put together from fragments, decoded by `hpack` within limits, checked as a request's (RFC
9113, 8), and written.

What is written uses static entries and literals only: answers of gRPC are two constant blocks, and a peer's
table stays empty.
"""

import logging
import re
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, OversizedHeaderListError

from gateway.http.messages import Header
from gateway.server.http2.frames import (
    COMPRESSION_ERROR,
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    MAX_STREAM_ID,
    PRIORITIZED,
    PROTOCOL_ERROR,
    Frame,
    Http2Error,
    number,
    without_padding,
)

logging.getLogger("hpack").setLevel(logging.INFO)
"""Debug lines of hpack have each header, with values that are secret."""

MAX_KNOWN_BLOCKS: Final = 256
"""A proxy sends few different blocks once its table is filled."""

_INDEXED: Final = re.compile(rb"[\x81-\xfe]+")
"""Blocks of entries of the tables alone, each in one byte: they change nothing in the table."""

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
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
        self.first = frame
        self._num_bytes = 0
        return self._take(frame, _fragment(frame))

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


class HeaderDecoder:
    """Decoder of one connection's header blocks."""

    __slots__ = ("_decoder", "_known")

    def __init__(self, max_bytes: int) -> None:
        """Start with empty tables; `max_bytes` is the size of a decoded list as RFC 9113 (6.5.2) has it."""
        self._decoder = Decoder(max_bytes)
        self._known: dict[bytes, list[Header]] = {}

    def __repr__(self) -> str:
        return f"HeaderDecoder({len(self._known)} blocks known)"

    def decode(self, block: bytes) -> list[Header]:
        """Decode a header block. Raises Http2Error: after a fault the tables of both sides differ."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            headers = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as oversized:
            raise Http2Error(ENHANCE_YOUR_CALM, "the headers are too large") from oversized
        except (HPACKDecodingError, IndexError) as broken:
            raise Http2Error(COMPRESSION_ERROR, "the header block is broken") from broken
        if _INDEXED.fullmatch(block):
            if len(self._known) < MAX_KNOWN_BLOCKS:
                self._known[block] = headers
        else:
            self._known.clear()  # indices may mean other entries from now on
        return headers


def request_fault(headers: list[Header]) -> str:
    """Return what makes a request's headers malformed; "" for good ones."""
    seen: set[bytes] = set()
    is_behind = False
    for name, value in headers:
        if name[:1] != b":":
            is_behind = True
            if fault := field_fault(name, value):
                return fault
            continue
        if is_behind:
            return "a pseudo-header after a header"
        if name not in _PSEUDO:
            return "an unknown pseudo-header"
        if name in seen:
            return "a pseudo-header twice"
        if name == b":path" and not value:
            return "an empty :path"
        seen.add(name)
    if b":method" not in seen or b":scheme" not in seen or b":path" not in seen:
        return "a request without :method, :scheme or :path"
    return ""


def trailers_fault(headers: list[Header]) -> str:
    """Return what makes trailers malformed; "" for good ones."""
    for name, value in headers:
        if name[:1] == b":":
            return "a pseudo-header in trailers"
        if fault := field_fault(name, value):
            return fault
    return ""


def field_fault(name: bytes, value: bytes) -> str:
    """Return what makes a header malformed; "" for a good one."""
    if _NAME.fullmatch(name) is None:
        return "a header's name with upper case or invalid characters"
    if name in _OF_CONNECTION or (name == b"te" and value != b"trailers"):
        return "a header that belongs to HTTP/1.1 connections"
    if b"\n" in value or b"\r" in value or b"\0" in value:
        return "a header's value with line breaks"
    return ""


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
