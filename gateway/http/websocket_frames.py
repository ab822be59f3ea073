"""WebSocket messages of clients (RFC 6455), checked for the models that they name.

    bytes ─► frames ─► a whole message ─► names no other model ─► passed on as it came
                                     └─► names another one, or cannot be read: FrameRefused

The sessions of /v1/realtime name models in their messages (`session.update`), at any depth. Only connections
of keys limited to some models are read; their upgrade request is sent on without extensions, so that no
message is compressed.
"""

import json
from collections.abc import Container, Sequence

from gateway.core.request import MODEL
from gateway.http.messages import Header

PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG = 1002, 1008, 1009
MAX_MESSAGE_BYTES = 2 << 20
"""Largest message: most of a minute of sound, and some 15 ms to read."""

MAX_READ_BYTES = 256 << 10
"""Largest message that may name a model: session settings, not sound."""

MAX_OPENED = 16_384
"""Lists and objects that such a message may open: many small ones take longer than as many bytes of text."""

_TEXT, _CONTROL = 0x1, 0x8
_PIECE_BYTES = 16 << 10
_EXTENSIONS = b"sec-websocket-extensions"


class FrameRefused(Exception):
    """Rejected frame; `code` is the status of the close frame that answers it."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class ModelFrames:
    """Checks the frames of a client after its upgrade; `models` are those that it may name."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._buffer = bytearray()
        self._held = bytearray()
        self._message = bytearray()

    def __repr__(self) -> str:
        return f"ModelFrames({len(self._buffer) + len(self._held)} bytes wait)"

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be passed on now: whole messages. Raises FrameRefused."""
        buffer = self._buffer
        buffer += data
        passed, at = [], 0
        while end := self._end(buffer, at):
            passed.append(self._passed(bytes(buffer[at:end])))
            at = end
        del buffer[:at]
        if len(self._buffer) + len(self._held) > MAX_MESSAGE_BYTES:
            raise FrameRefused(TOO_BIG, f"a message is over {MAX_MESSAGE_BYTES} bytes")
        return b"".join(passed)

    def _end(self, buffer: bytearray, at: int) -> int:
        """Return the end of the frame at `at`; 0 where it is incomplete."""
        if len(buffer) < at + 2:
            return 0
        if buffer[at] & 0x70 or not buffer[at + 1] & 0x80:
            raise FrameRefused(PROTOCOL_ERROR, "a frame is compressed, or not masked")
        begin = _payload_at(buffer[at + 1])
        if len(buffer) < at + begin:
            return 0
        size = buffer[at + 1] & 0x7F if begin == 6 else int.from_bytes(buffer[at + 2 : at + begin - 4], "big")
        if size > MAX_MESSAGE_BYTES:
            raise FrameRefused(TOO_BIG, f"a message is over {MAX_MESSAGE_BYTES} bytes")
        end = at + begin + size
        return end if end <= len(buffer) else 0

    def _passed(self, frame: bytes) -> bytes:
        first, begin = frame[0], _payload_at(frame[1])
        if first & _CONTROL:
            return frame  # may stand between the frames of a message
        kind = first & 0x0F
        if bool(kind) == bool(self._held):
            raise FrameRefused(PROTOCOL_ERROR, "frames of two messages are mixed")
        if kind and kind != _TEXT:
            raise FrameRefused(POLICY_VIOLATION, "a message is not text")
        self._held += frame
        self._message += unmasked(frame[begin:], frame[begin - 4 : begin])
        if not first & 0x80:
            return b""
        message, whole = bytes(self._message), bytes(self._held)
        self._message, self._held = bytearray(), bytearray()
        check_message(message, self._models)
        return whole


def _payload_at(second: int) -> int:
    """Return the offset of a frame's payload, behind its mask, by its second byte."""
    size = second & 0x7F
    return 6 if size < 126 else 8 if size == 126 else 14


def check_message(message: bytes, models: Container[str]) -> None:
    """Raise FrameRefused for a message that names a model beside `models`, or cannot be read."""
    if b"\\u" not in message and b'"model"' not in message.lower():
        return
    if len(message) > MAX_READ_BYTES:
        raise FrameRefused(TOO_BIG, f"a message that names a model is over {MAX_READ_BYTES} bytes")

    if message.count(b"[") + message.count(b"{") > MAX_OPENED:
        raise FrameRefused(TOO_BIG, f"a message that names a model has over {MAX_OPENED} lists and objects")

    def check(pairs: Sequence[tuple[str, object]]) -> None:
        for name, value in pairs:
            if name.casefold() != MODEL or value is None:
                continue
            if name != MODEL or not isinstance(value, str) or value not in models:
                raise FrameRefused(POLICY_VIOLATION, "a message names a model that this key may not use")

    try:
        json.loads(message, object_pairs_hook=check)
    except (ValueError, RecursionError) as exc:
        raise FrameRefused(POLICY_VIOLATION, "a message is not readable JSON") from exc


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """Unmask a payload in pieces, since long integers are slow to make."""
    pieces = []
    for at in range(0, len(payload), _PIECE_BYTES):
        piece = payload[at : at + _PIECE_BYTES]
        size = len(piece)
        key = (mask * (size // 4 + 1))[:size]
        pieces.append((int.from_bytes(piece, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big"))
    return b"".join(pieces)


def close_frame(code: int, reason: str) -> bytes:
    """Return a close frame of a server, unmasked."""
    payload = code.to_bytes(2, "big") + reason.encode()[:123]
    return bytes((0x88, len(payload))) + payload


def without_extensions(headers: Sequence[Header]) -> list[Header]:
    return [header for header in headers if header[0] != _EXTENSIONS]
