"""Scanner of streamed answers: first token, usage, end; read from the bytes on their way through.

A streamed answer is cut at event borders: a client never sees half an event, even if the worker dies in the
middle of one. Events are parsed only until the first token was seen, and where their bytes contain usage; of
an event with more lines than any engine sends, the first ones.
"""

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.usage import WIDEST, RefusedUsage, Usage, UsageLimit
from gateway.core.usage_reading import read_usage

_USAGE = b'"usage":{'
_USAGE_SPACED = b'"usage": {'
MAX_HELD_BYTES = 1 << 20
"""Size above which an event is passed on in parts."""
MAX_LINES = 2048
"""Lines that are looked at of what is passed on at once: more than a read of short events has."""
MAX_USAGES = 16
"""Objects called `usage`, from the last one back, that are tried."""


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


_decode_event = msgspec.json.Decoder(_Event).decode


class SseScanner:
    """Scanner of a streamed body fed in any splits; forwards whole events. `num_events` counts those with
    data so far."""

    __slots__ = ("_tail", "_found", "_usage_event", "has_token", "is_whole", "num_events")

    def __init__(self) -> None:
        self._tail = b""
        self._found: Usage | RefusedUsage | None = None
        self._usage_event: bytes | None = None  # not read yet
        self.has_token = False
        self.is_whole = True  # the forwarded bytes end with an event's end
        self.num_events = 0

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to forward now; the rest is kept until its event is complete."""
        tail = self._tail
        near = tail[-3:] + data if tail else data  # the tail has no border, at most the beginning of one
        ends_whole = near.endswith((b"\n\n", b"\r\n\r\n"))
        if tail:
            data = tail + data
            self._tail = b""
        if not ends_whole and len(data) <= MAX_HELD_BYTES:
            cut = _last_border(near)
            cut += len(data) - len(near) if cut else 0
            self._tail = data[cut:]
            data = data[:cut]
            ends_whole = True
        if data:
            self.is_whole = ends_whole
            self.num_events += data.count(b"\ndata:") + data.startswith(b"data:")
            if not self.has_token:
                self.has_token = any(map(_has_token, event_data(data)))
            if _USAGE in data or _USAGE_SPACED in data:
                self._usage_event = data
        return data

    def held(self) -> bytes:
        """Return whole events that wait for the next one: none here."""
        return b""

    def flush(self) -> bytes:
        """Return the rest of an event that never ended."""
        tail, self._tail = self._tail, b""
        return tail

    def usage(self, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
        """Return the last usage that passed; parsed once."""
        unread, self._usage_event = self._usage_event, None
        if unread is not None:
            self._found = _last_usage(unread, limit)
        return self._found


def _last_border(data: bytes) -> int:
    lf, crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def event_data(data: bytes) -> list[bytes]:
    """Return the data of each one-line event among the first lines, as OpenAI streams have them."""
    lines = data.split(b"\n", MAX_LINES)
    return [line[5:].strip() for line in lines[:MAX_LINES] if line.startswith(b"data:")]


def _last_usage(data: bytes, limit: UsageLimit) -> Usage | RefusedUsage | None:
    """Return the usage of the last event that has a readable one."""
    end = len(data)
    for _ in range(MAX_USAGES):
        at = max(data.rfind(_USAGE, 0, end), data.rfind(_USAGE_SPACED, 0, end))
        if at < 0:
            break
        begin, after = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        line = data[begin : after if after >= 0 else len(data)]
        if line.startswith(b"data:") and (found := read_usage(line[5:].strip(), limit)):
            return found
        end = begin
    return None


def _has_token(event: bytes) -> bool:
    """Return True if an event has generated content: the first chat chunk has the role only."""
    try:
        found = _decode_event(event)
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
