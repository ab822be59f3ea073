"""Frames of a WebSocket, byte for byte."""

import json

from gateway.http.websocket_frames import unmasked

MASK = b"\x01\x02\x03\xf4"


def frame(payload: bytes, kind: int = 1, *, is_last: bool = True, rsv: int = 0, mask: bytes = MASK) -> bytes:
    size = len(payload)
    if size < 126:
        lengths = bytes([0x80 | size])
    else:
        lengths = b"\xfe" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xff" + size.to_bytes(8, "big")
    return bytes([0x80 * is_last | rsv | kind]) + lengths + mask + unmasked(payload, mask)


def text_frame(**fields: object) -> bytes:
    return frame(json.dumps(fields).encode())
