"""W3C Trace Context: which trace a request belongs to, and what its worker is told of it. Pure.

from a peer that is trusted   our span is a child of the client's; sampled if the client says so
from anybody else             a trace of our own, with a link to theirs: who asks does not decide what
                              is stored, nor writes into others' traces
"""

import re
from typing import NamedTuple

from gateway.http.messages import Header, HttpRequest

PARENT = b"traceparent"
OURS = b"x-kvgate-trace"
"""Beside the head that a worker gets: headers of that name go to no worker, and no client's are kept."""
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1


class Span(NamedTuple):
    """As hex digits."""

    trace_id: str
    span_id: str
    is_sampled: bool


class Traced(NamedTuple):
    """Our span, and the client's: its parent, or what it is linked to."""

    own: Span
    client: Span | None
    is_child: bool


def read(value: bytes | None) -> Span | None:
    """None for what is none: the standard says to begin anew then."""
    found = _FORM.fullmatch(value) if value else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return None
    trace_id, span_id = found[2].decode(), found[3].decode()
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return Span(trace_id, span_id, bool(int(found[4], 16) & SAMPLED))


def write(span: Span) -> bytes:
    return f"00-{span.trace_id}-{span.span_id}-{span.is_sampled:02x}".encode()


def begin(http: HttpRequest, own: Span, client: Span | None, *, is_child: bool) -> None:
    """Its workers are told of our span in place of the client's. Who follows another's trace keeps the
    state that goes with it."""
    dropped = {PARENT, OURS} if is_child else {PARENT, OURS, b"tracestate"}
    headers: list[Header] = [header for header in http.headers if header[0] not in dropped]
    headers.append((PARENT, write(own)))
    told = write(client) if client else b""
    headers.append((OURS, (b"child " if is_child else b"link ") + told))
    http.headers = headers


def traced(http: HttpRequest | None) -> Traced | None:
    """None for one that was not begun here."""
    told = http.header(OURS) if http else None
    own = read(http.header(PARENT)) if http and told else None
    if told is None or own is None:
        return None
    how, _, client = told.partition(b" ")
    return Traced(own, read(client), how == b"child")
