"""Which session a request belongs to: what a header, a cookie or its field `user` says, in this order."""

from gateway.core.requests.session_id import short
from gateway.http.messages import HttpRequest


def session_of(http: HttpRequest, header: bytes, cookie: bytes) -> str | None:
    """The session id in a header (lower-case name) or a cookie; empty names are not looked up."""
    if header and (value := http.header(header)):
        return short(value.decode("latin-1"))
    if cookie and (line := http.header(b"cookie")):
        for pair in line.split(b";"):
            name, _, value = pair.strip().partition(b"=")
            if name == cookie and value:
                return short(value.decode("latin-1"))
    return None
