"""Messages, timeouts and statuses of gRPC on HTTP/2, as bytes (gRPC's PROTOCOL-HTTP2.md)."""

import re
from typing import Final
from urllib.parse import quote

from gateway.server.http2.frames import number
from gateway.server.http2.header_block import literal

OK: Final = 0
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

PREFIX_BYTES: Final = 5

RESPONSE_HEAD: Final = b"\x88" + b"\x0f\x10\x10application/grpc"
""":status 200 and content-type, by entries 8 and 31 of the static table."""

MAX_TEXT: Final = 1024
"""Characters of an error's text."""

_PLAIN: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class GrpcError(Exception):
    """A fault of one stream, with the status that ends it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class MessageReader:
    """Cuts a stream's data into messages; `num_held` bytes of an incomplete one wait, of which `num_seen` had
    come at the last look."""

    __slots__ = ("num_held", "num_seen", "_held", "_num_needed", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.num_held = self.num_seen = 0
        self._held = bytearray()
        self._num_needed = PREFIX_BYTES
        self._max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"MessageReader({self.num_held} of {self._num_needed} bytes)"

    def only_message(self, data: bytes) -> bytes | None:
        """Return the message of data that is just one, as most frames have it; None for others."""
        size = len(data) - PREFIX_BYTES
        if self.num_held or size < 0 or size > self._max_bytes or data[0] or number(data, 1) != size:
            return None
        return data[PREFIX_BYTES:]

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole now. Raises GrpcError for one that is too long or compressed."""
        if self.num_held:
            self._held += data
            self.num_held += len(data)
            if self.num_held < self._num_needed:
                return []
            data = bytes(self._held)
            self._held = bytearray()
            self.num_held = self.num_seen = 0
        messages: list[bytes] = []
        at, size = 0, len(data)
        while size - at >= PREFIX_BYTES:
            end = at + PREFIX_BYTES + self._length(data, at)
            if end > size:
                break
            messages.append(data[at + PREFIX_BYTES : end])
            at = end
        if at < size:
            self._hold(data, at)
        return messages

    def is_stuck(self, num_bytes: float) -> bool:
        """Look at an incomplete message: True if fewer bytes of it came since the last look."""
        num_before, self.num_seen = self.num_seen, self.num_held
        return num_before > 0 and self.num_held - num_before < num_bytes

    def drop(self) -> None:
        self._held = bytearray()
        self.num_held = 0

    def _length(self, data: bytes, at: int) -> int:
        if data[at] == 1:
            raise GrpcError(UNIMPLEMENTED, "compressed messages are not supported")
        if data[at] > 1:
            raise GrpcError(INTERNAL, f"a message with flags {data[at]}")
        length = number(data, at + 1)
        if length > self._max_bytes:
            raise GrpcError(
                RESOURCE_EXHAUSTED, f"a message of {length} bytes; at most {self._max_bytes} are read"
            )
        return length

    def _hold(self, data: bytes, at: int) -> None:
        self._held += data[at:]
        self.num_held = len(data) - at
        self._num_needed = PREFIX_BYTES
        if self.num_held >= PREFIX_BYTES:
            self._num_needed += self._length(data, at)


def prefix(message: bytes) -> bytes:
    """Return the bytes before a message."""
    return len(message).to_bytes(PREFIX_BYTES, "big")


def trailers(status: int, message: str) -> bytes:
    """Return the header block that ends a stream."""
    block = literal(b"grpc-status", b"%d" % status)
    if message:
        block += literal(b"grpc-message", quote(message[:MAX_TEXT], safe=_PLAIN).encode())
    return block


def http_error(status: int) -> bytes:
    """Return the header block of an answer to a request that is not gRPC."""
    return b"\x08" + b"\x03%d" % status


def timeout_s(value: bytes) -> float:
    """Return the seconds of a grpc-timeout. Raises GrpcError for malformed ones."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise GrpcError(INTERNAL, "malformed grpc-timeout")
    return int(found[1]) * _UNITS_S[found[2]]
