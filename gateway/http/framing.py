"""What a head says of where its message ends and whom it is for, and that it can be said one way only.

llhttp refuses most of what two parsers could read differently. Here is what it lets pass: versions that
are not ours, codings beside `chunked`, no Host or two (RFC 9112, 2.3, 3.2, 6.1). Whatever is taken is
framed anew on its way on, so nothing of a client's framing reaches a worker, nor the other way round.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.errors import (
    BodyTooLarge,
    ExpectationFailed,
    InvalidRequest,
    NotSupported,
    VersionNotSupported,
)
from gateway.http.messages import Header

_OF_REQUESTS = frozenset({b"content-length", b"expect", b"host", b"transfer-encoding"})
_ABSOLUTE = re.compile(rb"https?://[^/?#@]+([/?#]|$)", re.IGNORECASE)
"""A whole URL needs a host (RFC 9110, 4.2.1); what stands before an @ is there to deceive (4.2.4)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send, in bytes, seconds and bytes per second."""

    max_body_bytes: int = 64 << 20
    max_head_bytes: int = 64 << 10
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    min_body_rate: float = 500.0
    keep_alive_s: float = 75.0
    max_pipelined: int = 16

    def body_left_s(self, now: float, began: float, num_bytes: int) -> float:
        """How long the next piece of a body may take that began to come at `began`: each piece has the
        same time, and the whole that time plus what its bytes take at the lowest rate. 0: too slow."""
        whole_s = self.body_timeout_s + num_bytes / self.min_body_rate
        return max(min(self.body_timeout_s, began + whole_s - now), 0.0)


class BadAnswer(ValueError):
    """An answer that a worker must not give; says why."""


def check_request(version: str, target: bytes, headers: Iterable[Header], max_body_bytes: int) -> bool:
    """Whether the client waits for `100 Continue`. Raises GatewayError for a head that is not taken."""
    if version not in ("1.1", "1.0"):
        raise VersionNotSupported(f"HTTP/{version} is not spoken here, HTTP/1.1 is")
    num_hosts, expects = 0, False
    for name, value in headers:
        if name not in _OF_REQUESTS:
            continue
        if name == b"host":
            num_hosts += 1
        elif name == b"content-length":
            if int(value) > max_body_bytes:
                raise BodyTooLarge(f"the body is over {max_body_bytes} bytes, the gateway's --max-body-bytes")
        elif name == b"transfer-encoding":
            _check_coding(version, value)
        elif value.lower() != b"100-continue":
            raise ExpectationFailed("only 'Expect: 100-continue' is understood")
        else:
            expects = version == "1.1"
    if num_hosts > 1 or (not num_hosts and version == "1.1"):
        raise InvalidRequest(f"a request has one Host header, this has {num_hosts or 'none'}")
    if target[:1] != b"/" and target != b"*" and not _ABSOLUTE.match(target):
        raise InvalidRequest("the request's target is neither a path nor a whole http URL")
    return expects


def _check_coding(version: str, value: bytes) -> None:
    if version == "1.0":
        raise InvalidRequest("Transfer-Encoding is not part of HTTP/1.0")
    coding = value.strip().lower()
    if not coding.endswith(b"chunked"):
        raise InvalidRequest("a body in a transfer coding ends with 'chunked'")
    if coding != b"chunked":
        raise NotSupported("no transfer coding but 'chunked' is understood")


def check_answer(version: str, status: int, headers: Iterable[Header]) -> tuple[int | None, bool]:
    """The body's length, if it is told, and whether it is chunked. Raises BadAnswer."""
    if version not in ("1.1", "1.0"):
        raise BadAnswer(f"it speaks HTTP/{version}")
    if not 100 <= status <= 599:
        raise BadAnswer(f"there is no status {status}")
    length, is_chunked = None, False
    for name, value in headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            if is_chunked or value.strip().lower() != b"chunked":
                raise BadAnswer("it uses a transfer coding that nobody asked for")
            is_chunked = True
    return length, is_chunked
