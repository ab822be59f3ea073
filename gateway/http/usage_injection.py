"""Usage that we asked for in a stream and the client did not: asked for, and taken out again.

What an engine changes in its stream when it is asked, and what becomes of it here, so that the client's
bytes are those that it would have had:

    a last chunk with `"choices":[]` and the usage      is not passed on
    `"usage":null` in the other chunks                  is cut out, but for engines that always write it
    vLLM puts `system_fingerprint` into the last chunk  goes back into the chunk that tells a finish reason,
      in place of the one that tells a finish reason      which waits for the event behind it

An engine that tells usage beside choices does so unasked (`--enable-force-include-usage`): its stream passes
as it is. Keys are searched for with their quotes: within a JSON string those are escaped.
"""

import re

import msgspec

from gateway.core.decoding import UNREADABLE
from gateway.http.sse import SseScanner

_ASK = b'"stream_options":{"include_usage":true},'
_KEY, _USAGE, _USAGE_SPACED = b'"usage"', b'"usage":{', b'"usage": {'
_CHOICES, _SPACED = b'"choices"', b'"choices": '
_FINISH, _FINISH_SPACED = b'"finish_reason":"', b'"finish_reason": "'
_FINGERPRINT = b'"system_fingerprint"'
_EVENT = re.compile(rb".*?(?:\n\n|\r\n\r\n)|.+\Z", re.DOTALL)
_NULL = re.compile(rb',\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,\s*')


def with_usage(body: bytes) -> bytes:
    """A body that asks for usage, of one with fields that does not have `stream_options`."""
    at = body.index(b"{") + 1
    view = memoryview(body)
    return b"".join((view[:at], _ASK, view[at:]))


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Chunk).decode


class UnaskedScanner(SseScanner):
    """As an SseScanner; what it passes on is the stream of a client that asked for no usage."""

    __slots__ = ("_held", "_keeps_null", "_key", "_usage", "_finish", "_is_forced")

    def __init__(self, *, keeps_null: bool = False) -> None:
        """`keeps_null`: the engine writes `"usage":null` whether it is asked or not."""
        super().__init__()
        self._keeps_null = keeps_null
        self._finish = self._usage = self._key = b""
        self._is_forced = False
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = super().feed(data)
        if not self._finish and not self._read_style(data):
            return data
        is_of_interest = self._key in data or self._finish in data
        if self._held or (is_of_interest and self.is_whole and not self._is_forced):
            return b"".join([self._passed(event) for event in _EVENT.findall(data)])
        return data

    def _read_style(self, data: bytes) -> bool:
        """How this engine writes JSON, the same in all of its events; False before the first chunk."""
        if _CHOICES not in data:
            return False
        is_spaced = _SPACED in data
        self._finish = _FINISH_SPACED if is_spaced else _FINISH
        self._usage = _USAGE_SPACED if is_spaced else _USAGE
        self._key = self._usage if self._keeps_null else _KEY
        return True

    def held(self) -> bytes:
        """The whole event that waits for the one behind it."""
        held, self._held = self._held, b""
        return held

    def flush(self) -> bytes:
        return self.held() + super().flush()

    def _passed(self, event: bytes) -> bytes:
        """What goes on at this event: it, and the one that waited for it."""
        if self._is_forced:
            return event
        if self._usage in event:
            chunk = _read(event)
            if chunk is not None and chunk.choices == []:
                return _stamped(self.held(), bytes(chunk.system_fingerprint))
            self._is_forced = chunk is not None
            return self.held() + event
        held = self.held()
        if not self._keeps_null and _KEY in event:
            event = _NULL.sub(b"", event, count=1)
        if self._finish in event:
            self._held = event
            return held
        return held + event


def _read(event: bytes) -> _Chunk | None:
    """The chunk of a one-line event."""
    for line in event.splitlines():
        if line.startswith(b"data:"):
            try:
                return _decode(line[5:])
            except UNREADABLE:
                return None
    return None


def _stamped(event: bytes, fingerprint: bytes) -> bytes:
    """With the fingerprint where it would have been."""
    end = event.rfind(b"}")
    if end < 0 or fingerprint == b"null" or _FINGERPRINT in event:
        return event
    is_spaced = _FINISH_SPACED in event
    key = b", " + _FINGERPRINT + b": " if is_spaced else b"," + _FINGERPRINT + b":"
    return event[:end] + key + fingerprint + event[end:]
