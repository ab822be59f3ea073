"""A large body without the middle of its long texts, found without a parser.

    "content": "aaaaaaaaaa … aaaaaaaaaa"   ─►   "content": "aaaa…aaaa"

A window of bytes without a quote lies within one text, or outside of all: the number of quotes before it says
which. A search for one byte takes 3 ms for 60 MB, a parser takes 90. Texts are cut between characters and
between escapes, so the rest is the same JSON with the same names in the same places.
"""

WINDOW = 64 << 10
_QUOTE, _BACKSLASH = b'"', 0x5C
_LONGEST_ESCAPE = 12
"""Bytes of a surrogate pair."""
_TRIES = 64


def abridged(body: bytes, keep: int) -> bytes:
    """The body with at least `keep` bytes left at both ends of each text that is shortened; the body itself
    where there is no such text."""
    parts: list[bytes] = []
    copied = counted = 0
    is_inside = False
    at = 0
    while at + WINDOW <= len(body):
        if body.find(_QUOTE, at, at + WINDOW) >= 0:
            at += WINDOW
            continue
        start, end = body.rfind(_QUOTE, counted, at) + 1, body.find(_QUOTE, at + WINDOW)
        start, end = max(start, counted), len(body) if end < 0 else end
        is_inside ^= _has_odd_quotes(body[counted:start])
        escapes = _num_backslashes(body, start, end)
        if escapes < 0:
            break
        if is_inside and end - start > 2 * (keep + _TRIES):
            first, last = _border(body, start + keep), _border(body, end - keep - _TRIES)
            if first > 0 and last > first:
                parts.append(body[copied:first])
                copied = last
        at = counted = min(end + escapes % 2, len(body))
    return b"".join([*parts, body[copied:]]) if parts else body


def _has_odd_quotes(part: bytes) -> bool:
    """True if a text begins or ends in `part`, which begins behind a whole escape."""
    if b"\\" in part:
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
    return part.count(_QUOTE) % 2 == 1


def _num_backslashes(body: bytes, start: int, end: int) -> int:
    """How many stand before `end`; -1 where they are too many to be counted."""
    tail = body[max(start, end - WINDOW) : end]
    num = len(tail) - len(tail.rstrip(b"\\"))
    return -1 if num == WINDOW else num


def _border(body: bytes, at: int) -> int:
    """The next place between two characters; -1 where none is near."""
    for place in range(at, at + _TRIES):
        byte = body[place]
        if byte == _BACKSLASH:
            is_low = (
                body[place + 1 : place + 3].lower() == b"ud" and body[place + 3 : place + 4] in b"cdefCDEF"
            )
            if body[place - 1] != _BACKSLASH and not is_low:
                return place
        elif byte & 0xC0 != 0x80 and b"\\" not in body[place - _LONGEST_ESCAPE : place]:
            return place
    return -1
