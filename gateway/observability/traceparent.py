"""W3C Trace Context: the trace that a request belongs to, and the header that the worker receives. Pure.

trusted peer   kvgate's span is a child of the client's; sampled if the client's is
other peer     a new trace with a link to the client's: a client decides neither what is stored, nor writes
               into other traces
"""

import re
from typing import NamedTuple

from gateway.http.messages import Header, HttpRequest

PARENT = b"traceparent"
OURS = b"x-kvgate-trace"
"""Internal header with the client's trace: never sent to a worker, and removed from clients' requests."""
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1


class SpanContext(NamedTuple):
    """A span's ids, as hex digits."""

    trace_id: str
    span_id: str
    is_sampled: bool


class RequestTrace(NamedTuple):
    """kvgate's span and the client's, which is the parent (`is_child`) or is linked to."""

    own: SpanContext
    client: SpanContext | None
    is_child: bool


def read(value: bytes | None) -> SpanContext | None:
    """Parse a `traceparent` header; None if it is invalid, for which the standard requires a new trace."""
    found = _FORM.fullmatch(value) if value else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return None
    trace_id, span_id = found[2].decode(), found[3].decode()
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return SpanContext(trace_id, span_id, bool(int(found[4], 16) & SAMPLED))


def write(span: SpanContext) -> bytes:
    return f"00-{span.trace_id}-{span.span_id}-{span.is_sampled:02x}".encode()


def begin(http: HttpRequest, own: SpanContext, client: SpanContext | None, *, is_child: bool) -> None:
    """Replace the client's span by kvgate's in the request's headers. `tracestate` is kept only where the
    client's trace is continued."""
    dropped = {PARENT, OURS} if is_child else {PARENT, OURS, b"tracestate"}
    headers: list[Header] = [header for header in http.headers if header[0] not in dropped]
    headers.append((PARENT, write(own)))
    parent = write(client) if client else b""
    headers.append((OURS, (b"child " if is_child else b"link ") + parent))
    http.headers = headers


def traced(http: HttpRequest | None) -> RequestTrace | None:
    """The trace of a request; None if `begin` was not called for it."""
    ours = http.header(OURS) if http else None
    own = read(http.header(PARENT)) if http and ours else None
    if ours is None or own is None:
        return None
    how, _, client = ours.partition(b" ")
    return RequestTrace(own, read(client), how == b"child")
