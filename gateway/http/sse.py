"""Scanner of streamed answers: first token, usage, end; read from the bytes on their way through.

A streamed answer is cut at event borders: a client never sees half an event, even if the worker dies in the
middle of one. Events are parsed only until the first token was seen, and where their bytes contain usage; of
an event with more lines than any engine sends, the first ones.

The grammar is that of WHATWG's HTML standard: a line ends with LF, CR or CRLF, each by itself, and an empty
line ends an event. A comment (`: ping`) is part of no event, so it passes at the end of its line.
Several `data` lines are one text; a byte order mark may begin the stream.
"""

import re
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.usage import WIDEST, RefusedUsage, Usage, UsageLimit
from gateway.core.usage_reading import read_beginning, read_usage
from gateway.http.stream_chunks import has_token

_USAGE: Final = b'"usage":{'
_USAGE_SPACED: Final = b'"usage": {'
_META: Final = b'"meta_info"'
_MESSAGE_START: Final = b'"message_start"'
_BOM: Final = b"\xef\xbb\xbf"
_ENDS: Final = (b"\n\n", b"\n\r\n", b"\n\r", b"\r\r\n", b"\r\r")
"""An empty line behind a line's end, in all combinations; CRLF is one end."""
_END: Final = re.compile(rb"\r\n?|\n")
_BETWEEN: Final = re.compile(rb"(?>(?::[^\r\n]*)?(?>\r\n|\n|\r))+")
"""Comments and empty lines, which need not wait for an event's end."""
MAX_HELD_BYTES: Final = 1 << 20
"""Size above which an event is passed on in parts."""
MAX_LINES: Final = 2048
"""Lines that are looked at of what is passed on at once: more than a read of short events has."""
MAX_USAGES: Final = 16
"""Objects called `usage`, from the last one back, that are tried."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SseScanner:
    """Scanner of a streamed body fed in any splits; forwards whole events. `num_events` counts those with
    data so far."""

    __slots__ = (
        "_tail",
        "_found",
        "_usage_event",
        "_beginning",
        "has_token",
        "is_whole",
        "num_events",
        "_is_new",
        "_has_meta",
    )

    def __init__(self) -> None:
        self._tail = b""
        self._found: Usage | RefusedUsage | None = None
        self._usage_event: bytes | None = None  # not read yet
        self._beginning: bytes | None = (
            None  # events with the start of a message, which its end may leave out
        )
        self.has_token = False
        self.is_whole = True  # the forwarded bytes end with an event's end
        self.num_events = 0
        self._is_new = True
        self._has_meta = False  # SGLang's own route counts in each event

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to forward now; the rest is kept until its event is complete."""
        tail = self._tail
        near = tail[-3:] + data if tail else data  # the tail has no border, at most the beginning of one
        ends_whole = near.endswith(_ENDS)
        if tail:
            data = tail + data
            self._tail = b""
        if not ends_whole and len(data) <= MAX_HELD_BYTES:
            cut = _last_border(near)
            cut += len(data) - len(near) if cut else 0
            if (cut or self.is_whole) and (b"\n" in near or b"\r" in near or not self.num_events):
                cut = self._behind_comments(data, cut)
            self._tail = data[cut:]
            data = data[:cut]
            ends_whole = True
        elif not ends_whole:
            cut = len(data.rstrip(b"\r\n"))  # a line's end may be the beginning of a border
            self._tail = data[cut:]
            data = data[:cut]
        if data:
            self.is_whole = ends_whole
            if not self.num_events:
                self._has_meta = _META in data
            # Not `in`, which raises and drops a TypeError for bytes: four times the time.
            if data.find(_USAGE) >= 0 or data.find(_USAGE_SPACED) >= 0 or (self._has_meta and _META in data):
                self._keep_usage(data)
            if data.startswith(b"data:") and data.find(b"\n") == len(data) - 2:
                self.num_events += 1
            else:
                self._count(data)
            if not self.has_token:
                self.has_token = any(map(has_token, event_data(data)))
        return data

    def _keep_usage(self, data: bytes) -> None:
        self._usage_event = data
        if self._beginning is None and _MESSAGE_START in data:
            self._beginning = data

    def _behind_comments(self, data: bytes, cut: int) -> int:
        """Return the end of comments and empty lines at `cut`, where a line begins outside of an event."""
        at = len(_BOM) if cut == 0 and self._begins(data) else cut
        between = _BETWEEN.match(data, at)
        return between.end() if between else at

    def _begins(self, data: bytes) -> bool:
        """Return True for the mark that may begin a stream."""
        return self._is_new and not self.num_events and data.startswith(_BOM)

    def _count(self, data: bytes) -> None:
        text = data.removeprefix(_BOM) if self._begins(data) else data
        self.num_events += _num_events(text)
        self._is_new = False

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
            if isinstance(self._found, Usage) and not self._found.prompt_tokens and self._beginning:
                self._found = _with_beginning(self._found, self._beginning, limit)
        return self._found


def ends_between_events(data: bytes, began_between: bool) -> bool:
    """Return True if another event may follow bytes that were passed on: they end with an event's end, and
    perhaps comments behind it. `began_between`: they began there."""
    if data.endswith(_ENDS):
        return True
    cut = _last_border(data)
    return (began_between or cut > 0) and _BETWEEN.fullmatch(data, cut) is not None


def _last_border(data: bytes) -> int:
    lf = data.rfind(b"\n\n") + 2
    if b"\r" not in data:
        return lf if lf > 1 else 0
    return max([at + len(end) for end in _ENDS if (at := data.rfind(end)) >= 0], default=0)


def _num_events(data: bytes) -> int:
    """Return the number of events with data. Where the first one has it in a line, the others are taken to;
    else each line is looked at."""
    begin = data.find(b"\n") + 1 if data.startswith(b"event:") else 0
    end = data.find(b"\n", begin)
    if data.startswith(b"data:", begin) and data.startswith(b"\n\n", end) and b"\r" not in data:
        return data.count(b"\ndata:", end) + 1
    return len(event_data(data))


def event_data(data: bytes) -> list[bytes]:
    """Return the data of each event among the first lines, without space around it; lines of one event are
    joined. A byte order mark may be first."""
    data = data.removeprefix(_BOM)
    lines = _END.split(data, MAX_LINES) if b"\r" in data else data.split(b"\n", MAX_LINES)
    found: list[bytes] = []
    parts: list[bytes] = []
    for line in lines[:MAX_LINES]:
        if line.startswith(b"data:"):
            parts.append(line[5:])
        elif not line and parts:
            found.append(b"\n".join(parts).strip())
            parts = []
    return [*found, b"\n".join(parts).strip()] if parts else found


def _last_usage(data: bytes, limit: UsageLimit) -> Usage | RefusedUsage | None:
    """Return the usage of the last event that has a readable one."""
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    end = len(data)
    for _ in range(MAX_USAGES):
        at = max(data.rfind(_USAGE, 0, end), data.rfind(_USAGE_SPACED, 0, end), data.rfind(_META, 0, end))
        if at < 0:
            break
        border, after = data.rfind(b"\n\n", 0, at), data.find(b"\n\n", at)
        begin = border + 2 if border >= 0 else 0
        for text in event_data(data[begin : after if after >= 0 else len(data)])[:1]:
            if found := read_usage(text, limit):
                return found
        end = begin
    return None


def _with_beginning(end: Usage, data: bytes, limit: UsageLimit) -> Usage | RefusedUsage:
    """Return a message's usage from its end, and of its prompt from its beginning, which is in `data`."""
    for event in event_data(data):
        if begun := read_beginning(event, limit):
            if isinstance(begun, RefusedUsage):
                return begun
            return Usage(begun.prompt_tokens, end.completion_tokens, begun.cached_tokens, begun.has_null)
    return end
