"""The text of a JSON body: its encoding, and the place at which it cannot be read.

JSON comes in UTF-8, and older clients send UTF-16, UTF-32 or a byte order mark; engines take all of these, as
Python's `json.loads` does. A body goes on in UTF-8 without a mark: what was judged is what a worker reads.

    00 xx       UTF-16 BE       xx 00 xx    UTF-16 LE       FE FF, FF FE          UTF-16, by its mark
    00 00       UTF-32 BE       xx 00 00    UTF-32 LE       EF BB BF              UTF-8, by its mark

JSON begins with ASCII, so that zeros among the first bytes show the encoding.
"""

import codecs
import re
from io import BytesIO
from typing import Final

from gateway.core.errors import BodyTooLarge, InvalidRequest

PIECE_BYTES: Final = 256 << 10
"""Bytes that are decoded at once."""
MAX_GROWTH: Final = 1.5
"""A character of two bytes in UTF-16 may take three in UTF-8."""

_PLAIN: Final = (b'{"', b"--")
"""Beginnings of nearly all bodies: an object, or a form."""
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_COMPRESSED: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"(\xb5/\xfd", "zstd"),
    (b"x\x01", "deflate"),
    (b"x\x9c", "deflate"),
    (b"x\xda", "deflate"),
)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NO_NUMBER: Final = re.compile(rb"NaN|Infinity")
"""Numbers of Python and JavaScript that JSON has not."""
_ESCAPE_BYTES: Final = 6


def encoding_of(body: bytes) -> str | None:
    """Return the encoding of a JSON body, as Python names it; None for plain UTF-8 and for a form."""
    if body.startswith(_PLAIN):
        return None
    for mark, name in _MARKS:
        if body.startswith(mark):
            return name
    first = body[:4]
    if first[:1] == b"\0":
        return "utf-32-be" if first[1:2] == b"\0" else "utf-16-be"
    if first[1:2] == b"\0":
        return "utf-32-le" if first[2:] == b"\0\0" else "utf-16-le"
    return None


def as_utf8(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a body in UTF-8, made in pieces. Raises InvalidRequest with the byte that has no character, and
    BodyTooLarge for over `max_bytes`."""
    decoder, made, num_bytes = codecs.getincrementaldecoder(encoding)(), BytesIO(), 0
    for at in range(0, len(body), PIECE_BYTES):
        num_waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(body[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(body))
        except UnicodeDecodeError as exc:
            where = at - num_waiting + exc.start
            raise InvalidRequest(f"the body is not valid JSON: {_no_text(exc, where)}") from exc
        num_bytes += made.write(text.encode())
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"the body is over {max_bytes} bytes in UTF-8; send a smaller one")
    return made.getvalue()


def why_unreadable(exc: Exception, raw: bytes, begin: int = 0) -> str:
    """Return why a body, or the part of it that begins at byte `begin`, cannot be decoded, and where."""
    if not begin and (compressed := why_no_object(raw)):
        return compressed
    if isinstance(exc, UnicodeDecodeError):
        return _first_no_text(exc, raw, begin)
    text = str(exc).removeprefix("JSON is malformed: ")
    found = _BYTE.search(text)
    if "surrogate" in text and found is not None:
        at = raw.rfind(b"\\u", 0, int(found[1]))
        at -= 0 if _HALF.match(raw, at) else _ESCAPE_BYTES
        return _half(begin + at)
    if "truncated" in text:
        half = _HALF.search(raw, max(0, len(raw) - 2 * _ESCAPE_BYTES))
        end = begin + len(raw)
        return _half(begin + half.start()) if half else f"it ends at byte {end}, before it is complete"
    if found is not None and (word := _NO_NUMBER.match(raw, int(found[1]))):
        return f"{word[0].decode()} at byte {begin + word.start()} is not a JSON number"
    return _BYTE.sub(lambda byte: f"(byte {begin + int(byte[1])})", text)


def why_no_object(body: bytes) -> str:
    """Return a likely cause that a body is no JSON object; "" where there is none."""
    for mark, name in _COMPRESSED:
        if body.startswith(mark):
            return f"it seems to be compressed ({name}) from byte 0 on; send it uncompressed"
    return ""


def _half(at: int) -> str:
    return f"half of a surrogate pair at byte {at}, which is not a character"


def _first_no_text(exc: UnicodeDecodeError, raw: bytes, begin: int) -> str:
    """The decoder counts from the beginning of a text; the body is looked through from its own."""
    try:
        raw.decode()
    except UnicodeDecodeError as whole:
        return _no_text(whole, begin + whole.start)
    return str(exc)


def _no_text(exc: UnicodeDecodeError, at: int) -> str:
    return f"it is not {exc.encoding.upper()} at byte {at}: {exc.reason}"
