"""Chunks of streamed answers, parsed: generated content, and the usage at the end.

Few of a stream's events are parsed: those up to its first token, and the one with the usage. The modules that
look at each event (`http/sse.py`, `http/usage_injection.py`) are compiled; msgspec's structs cannot be.
"""

from typing import Final

import msgspec

from gateway.core.decode_errors import UNREADABLE


class _Delta(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None
    refusal: object = None


class _Piece(msgspec.Struct):
    text: object = None
    delta: _Delta | None = None
    finish_reason: object = None


class _Event(msgspec.Struct):
    """Event of a stream. `type` is in other routes' events: those with content end in "delta"."""

    choices: list[_Piece] = []
    type: object = None


class UsageChunk(msgspec.Struct):
    """Chunk of OpenAI's API, as far as usage changes it."""

    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"null")


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_usage: Final = msgspec.json.Decoder(UsageChunk).decode


def has_token(data: bytes) -> bool:
    """Return True if an event's data has generated content: the first chat chunk has the role only."""
    try:
        found = _decode_event(data)
    except UNREADABLE:
        return False
    if type(found.type) is str:
        return found.type.endswith((".delta", "_block_delta"))
    return any(_piece_has_token(piece) for piece in found.choices)


def _piece_has_token(piece: _Piece) -> bool:
    if piece.text or piece.finish_reason:
        return True
    delta = piece.delta
    return delta is not None and bool(
        delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls or delta.refusal
    )


def read_usage_chunk(data: bytes) -> UsageChunk | None:
    """Parse the chunk in an event's data; None if it is unreadable."""
    try:
        return _decode_usage(data)
    except UNREADABLE:
        return None
