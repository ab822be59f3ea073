"""Which session a request belongs to: what a header, a cookie or its field `user` says, in this order."""

from xxhash import xxh3_128_hexdigest

from gateway.core.http import HttpRequest

MAX_CHARS = 64
"""Names may be as long as a head or body; those that are longer are kept as their hash."""


def session_of(http: HttpRequest, header: bytes, cookie: bytes) -> str | None:
    """By the names of a header (in lower case) and a cookie; empty ones are not looked for."""
    if header and (value := http.header(header)):
        return short(value.decode("latin-1"))
    if cookie and (line := http.header(b"cookie")):
        for pair in line.split(b";"):
            name, _, value = pair.strip().partition(b"=")
            if name == cookie and value:
                return short(value.decode("latin-1"))
    return None


def short(session: str | None) -> str | None:
    if not session or len(session) <= MAX_CHARS:
        return session or None
    return xxh3_128_hexdigest(session.encode("utf-8", "surrogatepass"))
