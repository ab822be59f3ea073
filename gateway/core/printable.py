"""Texts from peers, for people: without characters that steer a terminal or hide what a line says.

C0 and DEL, C1 (U+0080-U+009F: a terminal's `ESC [` is also U+009B alone), line and paragraph separators,
bidi overrides and isolates, zero-width and other invisible characters, lone surrogates
    in text: as Python writes them in a literal (`\\x9b`, `\\u202e`)    in JSON: as JSON does (`\\u009b`)
"""

_DEL = b"\x7f"


def printable(text: str) -> str:
    """The text as one line, with control characters and everything else without a glyph escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_json(data: bytes) -> bytes:
    """The same JSON, with such characters escaped, which encoders leave in strings as they are. Lines stay:
    between strings JSON has no other character than spaces and line breaks that is not printable."""
    if data.isascii() and _DEL not in data:
        return data
    text = data.decode("utf-8", "surrogatepass")
    if text.isprintable():
        return data
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text).encode()


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
