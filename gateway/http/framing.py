"""Message framing: Content-Length, Transfer-Encoding and Host, rejecting ambiguity (request smuggling).

llhttp rejects most of what two parsers could read differently. Checked here is what it accepts: other
versions, codings beside `chunked`, no Host or two (RFC 9112, 2.3, 3.2, 6.1). Accepted messages are framed
again when they are sent on, so no framing of a client reaches a worker, nor the other way round.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.errors import (
    BodyTooLarge,
    ExpectationFailed,
    InvalidRequest,
    NotSupported,
    VersionNotSupported,
)
from gateway.http.content import CONTENT_HEADERS, PLAIN_TYPE, check_content
from gateway.http.messages import Header

_OF_REQUESTS: Final = CONTENT_HEADERS | {b"content-length", b"expect", b"host", b"transfer-encoding"}
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#@]+([/?#]|$)", re.IGNORECASE)
"""Absolute URL with a host (RFC 9110, 4.2.1) and without userinfo, which is deceptive (4.2.4)."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits for clients' requests, in bytes, seconds and bytes per second."""

    max_body_bytes: int = 64 << 20
    max_head_bytes: int = 64 << 10
    max_headers: int = 256
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    min_body_rate: float = 500.0
    keep_alive_s: float = 75.0
    max_pipelined: int = 16

    def body_left_s(self, now: float, began: float, num_bytes: int) -> float:
        """Return the seconds left for the next piece of a body that began at `began`: each piece has the same
        time, and the whole that time plus its bytes at the lowest rate. 0: too slow."""
        whole_s = self.body_timeout_s + num_bytes / self.min_body_rate
        return max(min(self.body_timeout_s, began + whole_s - now), 0.0)


MAX_ANSWER_HEADERS: Final = 256
"""Headers of an answer, each of which is copied and searched a few times; engines send some ten."""


class BadAnswer(ValueError):
    """Invalid answer of a worker; the message has the reason."""


def check_request(version: str, target: bytes, headers: list[Header], max_body_bytes: int) -> bool:
    """Check a request's head; returns True if the client expects `100 Continue`. Raises GatewayError for a
    rejected head. The charset of a body that goes on in UTF-8 is left out of `headers`."""
    if version not in ("1.1", "1.0"):
        raise VersionNotSupported(f"HTTP/{version} is not supported; use HTTP/1.1")
    num_hosts, expects = 0, False
    for at, (name, value) in enumerate(headers):
        if name not in _OF_REQUESTS or value == PLAIN_TYPE:
            continue
        if name == b"host":
            num_hosts += 1
        elif name == b"content-length":
            if int(value) > max_body_bytes:
                raise BodyTooLarge(f"the body is over {max_body_bytes} bytes; send a smaller one")
        elif name == b"transfer-encoding":
            _check_coding(version, value)
        elif name in CONTENT_HEADERS:
            headers[at] = name, check_content(name, value)
        elif value.lower() != b"100-continue":
            raise ExpectationFailed("only 'Expect: 100-continue' is supported")
        else:
            expects = version == "1.1"
    if num_hosts > 1 or (not num_hosts and version == "1.1"):
        raise InvalidRequest(f"the request has {num_hosts or 'no'} Host headers; send exactly one")
    if target[:1] != b"/" and target != b"*" and not _ABSOLUTE.match(target):
        raise InvalidRequest("the request target must be a path or an absolute http URL")
    return expects


def _check_coding(version: str, value: bytes) -> None:
    if version == "1.0":
        raise InvalidRequest("Transfer-Encoding is not part of HTTP/1.0")
    coding = value.strip().lower()
    if not coding.endswith(b"chunked"):
        raise InvalidRequest("the last transfer coding must be 'chunked'")
    if coding != b"chunked":
        raise NotSupported("only the transfer coding 'chunked' is supported")


def check_answer(version: str, status: int, headers: Sequence[Header]) -> tuple[int | None, bool]:
    """Check an answer's head; returns the body's length, if known, and whether it is chunked. Raises
    BadAnswer."""
    if version not in ("1.1", "1.0"):
        raise BadAnswer(f"answers with HTTP/{version}")
    if not 100 <= status <= 599:
        raise BadAnswer(f"invalid status {status}")
    if len(headers) > MAX_ANSWER_HEADERS:
        raise BadAnswer(f"it has over {MAX_ANSWER_HEADERS} headers")
    length, is_chunked = None, False
    for name, value in headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            if is_chunked or value.strip().lower() != b"chunked":
                raise BadAnswer("unsolicited transfer coding")
            is_chunked = True
    return length, is_chunked
