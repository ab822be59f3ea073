"""Headers of requests and trailers, judged (RFC 9113, 8): what makes them malformed, and what a server reads
of them."""

from typing import Final

from gateway.http.messages import Header

NAME_BYTES: Final = b"!#$%&'*+.^_`|~0123456789abcdefghijklmnopqrstuvwxyz-"
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class StreamHead:
    """Headers of a request; `fault` is what makes them malformed, "" for good ones. `num_expected` is the
    content-length, -1 without one."""

    __slots__ = ("headers", "fault", "num_expected", "method", "path", "content_type", "timeout")

    def __init__(self, headers: list[Header]) -> None:
        self.headers = headers
        self.num_expected = -1
        self.method = self.path = self.content_type = self.timeout = b""
        self.fault = request_fault(headers)
        for name, value in headers:
            if name == b":path":
                self.path = value
            elif name == b":method":
                self.method = value
            elif name == b"content-type":
                self.content_type = value
            elif name == b"grpc-timeout":
                self.timeout = value
            elif name == b"content-length":
                self._expect(value)

    def __repr__(self) -> str:
        return f"StreamHead({self.method!r}, {self.path!r}, {self.fault or 'good'})"

    def _expect(self, length: bytes) -> None:
        if self.num_expected < 0:
            if length.isdigit() and len(length) < 19:
                self.num_expected = int(length)
            else:
                self.fault = self.fault or "a broken content-length"


def request_fault(headers: list[Header]) -> str:
    """Return what makes a request's headers malformed; "" for good ones."""
    seen: set[bytes] = set()
    is_behind = False
    for name, value in headers:
        if name[:1] != b":":
            is_behind = True
            if fault := field_fault(name, value):
                return fault
            continue
        if is_behind:
            return "a pseudo-header after a header"
        if name not in _PSEUDO:
            return "an unknown pseudo-header"
        if name in seen:
            return "a pseudo-header twice"
        if name == b":path" and not value:
            return "an empty :path"
        seen.add(name)
    if b":method" not in seen or b":scheme" not in seen or b":path" not in seen:
        return "a request without :method, :scheme or :path"
    return ""


def trailers_fault(headers: list[Header]) -> str:
    """Return what makes trailers malformed; "" for good ones."""
    for name, value in headers:
        if name[:1] == b":":
            return "a pseudo-header in trailers"
        if fault := field_fault(name, value):
            return fault
    return ""


def field_fault(name: bytes, value: bytes) -> str:
    """Return what makes a header malformed; "" for a good one."""
    if not name or name.translate(None, NAME_BYTES):
        return "a header's name with upper case or invalid characters"
    if name in _OF_CONNECTION or (name == b"te" and value != b"trailers"):
        return "a header that belongs to HTTP/1.1 connections"
    if b"\n" in value or b"\r" in value or b"\0" in value:
        return "a header's value with line breaks"
    return ""
