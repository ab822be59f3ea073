"""Upgrade requests and HTTP/2 prefaces on an HTTP/1.1 connection."""

from collections.abc import Sequence
from typing import Final

from gateway.http.messages import Header, encode_head

WEBSOCKET: Final = b"websocket"


def _frame(kind: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame on stream 0, without flags (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 0)) + payload


_SETTINGS, _GOAWAY, _HTTP_1_1_REQUIRED = 4, 7, 0xD
HTTP2_REFUSAL: Final = _frame(_SETTINGS, b"") + _frame(
    _GOAWAY, bytes(4) + _HTTP_1_1_REQUIRED.to_bytes(4, "big") + b"this gateway speaks HTTP/1.1 only"
)
"""Answer to a client that begins in HTTP/2: our (empty) preface, and GOAWAY without processed streams."""


def offers_websocket(headers: Sequence[Header]) -> bool:
    return any(
        name == b"upgrade" and WEBSOCKET in map(bytes.strip, value.lower().split(b","))
        for name, value in headers
    )


def has_body(headers: Sequence[Header]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value)) for name, value in headers
    )


def without_offer(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """Return the head without its upgrade offer."""
    line = b"%b %b HTTP/%b" % (method, target, version.encode())
    return encode_head(line, [header for header in headers if header[0] != b"upgrade"])
