"""Which session a request belongs to: what a header, a cookie or its field `user` says, in this order."""

from typing import Final

from gateway.core.session_id import MAX_CHARS, short
from gateway.http.messages import HttpRequest

LABEL: Final = b"x-session-id"
"""Header that vLLM repeats in each KV event of the request."""


def session_of(http: HttpRequest, header: bytes, cookie: bytes) -> str | None:
    """The session id in a header (lower-case name) or a cookie; empty names are not looked up. A long LABEL
    goes on as the hash that stands for it here too."""
    if header and (value := http.header(header)):
        session = short(value.decode("latin-1"))
        if header == LABEL and len(value) > MAX_CHARS and session:
            kept = [each for each in http.headers if each[0] != LABEL]
            http.headers = [*kept, (LABEL, session.encode("latin-1"))]
        return session
    if cookie and (line := http.header(b"cookie")):
        for pair in line.split(b";"):
            name, _, value = pair.strip().partition(b"=")
            if name == cookie and value:
                return short(value.decode("latin-1"))
    return None
