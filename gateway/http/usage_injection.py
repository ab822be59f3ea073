"""Usage injection: usage requested on a stream for the gateway, and stripped before the client sees it.

The engine's stream changes with the request; this restores the bytes that the client would have had:

    a last chunk with `"choices":[]` and the usage      is not passed on
    `"usage":null` in the other chunks                  is cut out, but for engines that always write it
    vLLM puts `system_fingerprint` into the last chunk  goes back into the chunk with a finish reason,
      in place of the one with a finish reason            which waits for the event behind it

An engine that sends usage beside choices does so unrequested (`--enable-force-include-usage`): its stream
passes as it is. Keys are searched for with their quotes: within a JSON string those are escaped.
"""

import re
from typing import Final

from gateway.http.sse import SseScanner, event_data
from gateway.http.stream_chunks import read_usage_chunk

_ASK: Final = b'"stream_options":{"include_usage":true},'
_KEY: Final = b'"usage"'
_USAGE: Final = b'"usage":{'
_USAGE_SPACED: Final = b'"usage": {'
_CHOICES: Final = b'"choices"'
_SPACED: Final = b'"choices": '
_FINISH: Final = b'"finish_reason":"'
_FINISH_SPACED: Final = b'"finish_reason": "'
_FINGERPRINT: Final = b'"system_fingerprint"'
_BORDER: Final = re.compile(rb"\n(?:\n|\r\n?)|\r\r\n?")
"""The end of a line, and an empty line behind it; from the LF on where the first end is CRLF."""
_NULL: Final = re.compile(rb',\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,\s*')


def with_usage(body: bytes) -> bytes:
    """Add the request for usage to a non-empty JSON body without `stream_options`."""
    at = body.index(b"{") + 1
    view = memoryview(body)
    return b"".join((view[:at], _ASK, view[at:]))


class InjectedUsageScanner(SseScanner):
    """Scanner that strips injected usage: passes on the stream as for a client without the request."""

    __slots__ = ("_held", "_keeps_null", "_key", "_usage", "_finish", "_is_forced")

    def __init__(self, *, keeps_null: bool = False) -> None:
        """Create a scanner; `keeps_null`: the engine writes `"usage":null` whether usage is
        requested or not."""
        super().__init__()
        self._keeps_null = keeps_null
        self._finish = self._usage = self._key = b""
        self._is_forced = False
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = super().feed(data)
        if not self._finish and not self._read_style(data):
            return data
        is_of_interest = data.find(self._key) >= 0 or data.find(self._finish) >= 0
        if self._held or (is_of_interest and self.is_whole and not self._is_forced):
            return b"".join([self._passed(event) for event in _events(data)])
        return data

    def _read_style(self, data: bytes) -> bool:
        """Detect the engine's JSON style, which all events of a stream share; False before the first
        chunk."""
        if _CHOICES not in data:
            return False
        is_spaced = _SPACED in data
        self._finish = _FINISH_SPACED if is_spaced else _FINISH
        self._usage = _USAGE_SPACED if is_spaced else _USAGE
        self._key = self._usage if self._keeps_null else _KEY
        return True

    def held(self) -> bytes:
        """Return the event that was held back until the next one came, and hold it no longer."""
        held, self._held = self._held, b""
        return held

    def flush(self) -> bytes:
        return self.held() + super().flush()

    def _passed(self, event: bytes) -> bytes:
        """Return the bytes to pass on at this event: the event itself and the one held back before it."""
        if self._is_forced:
            return event
        if self._usage in event:
            chunk = read_usage_chunk(next(iter(event_data(event)), b""))
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


def _events(data: bytes) -> list[bytes]:
    """Split into events with their borders; the last one may have none."""
    events, at = [], 0
    for border in _BORDER.finditer(data):
        events.append(data[at : border.end()])
        at = border.end()
    return [*events, data[at:]] if at < len(data) else events


def _stamped(event: bytes, fingerprint: bytes) -> bytes:
    """Insert the fingerprint where it would have been."""
    end = event.rfind(b"}")
    if end < 0 or fingerprint == b"null" or _FINGERPRINT in event:
        return event
    is_spaced = _FINISH_SPACED in event
    key = b", " + _FINGERPRINT + b": " if is_spaced else b"," + _FINGERPRINT + b":"
    return event[:end] + key + fingerprint + event[end:]
