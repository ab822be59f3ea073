"""Session ids: short enough to keep, whatever length a client sends."""

from typing import Final

from xxhash import xxh3_128_hexdigest

MAX_CHARS: Final = 64
"""Ids may be as long as a head or a body; longer ones are kept as their hash."""


def short(session: str | None) -> str | None:
    """The session id itself, its hash where it is long, or None where it is empty."""
    if not session or len(session) <= MAX_CHARS:
        return session or None
    return xxh3_128_hexdigest(session.encode("utf-8", "surrogatepass"))
