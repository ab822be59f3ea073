"""Values of a JSON array, or of JSON values behind each other, one at a time: the file may be larger than the
memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO

CHUNK_BYTES = 1 << 20
_BETWEEN = re.compile(r"[\s,]*")


class CutShort(ValueError):
    """End or mistake within a value: nothing behind it can be read."""


def json_values(begin: bytes, file: IO[bytes], max_bytes: int) -> Iterator[bytes]:
    """Find the values, each as its text. `begin` was already read. Raises CutShort, and ValueError for a
    value of more than `max_bytes`."""
    decoder, utf8 = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")(errors="replace")
    text, at, is_array, is_end = utf8.decode(begin), 0, begin.lstrip()[:1] == b"[", False
    if is_array:
        text = text.lstrip()[1:]
    while True:
        at = _skipped(text, at)
        if is_array and text[at : at + 1] == "]":
            return
        end = _end(decoder, text, at)
        if max(end, len(text) if not end else 0) - at > max_bytes:
            raise ValueError(f"is longer than {max_bytes:,} bytes")
        if 0 < end < len(text) or (is_end and end > 0):
            yield text[at:end].encode()
            at = end
        elif is_end:
            if is_array or text[at:]:
                raise CutShort("JSON ends within a value" if text[at:] else "JSON array is not closed")
            return
        else:
            more = file.read(max(CHUNK_BYTES, len(text) - at))
            text, at, is_end = text[at:] + utf8.decode(more, not more), 0, not more


def _skipped(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _end(decoder: json.JSONDecoder, text: str, at: int) -> int:
    """End of the value there; 0 where none ends."""
    try:
        return decoder.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return 0
