"""HTTP/1.1 messages as values: requests, response heads, and which headers cross a proxy (RFC 9110, 9112)."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final, TypeAlias

from mypy_extensions import mypyc_attr

from gateway.core.caller import Caller
from gateway.core.token_prompt import TokenPrompt

Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, value as received."""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

OURS: Final = b"x-kvgate-"
"""Prefix of the gateway's own headers, which are dropped from clients and workers."""

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


@mypyc_attr(acyclic=True)
class HttpRequest:
    """Request of a client, with its body complete and de-chunked.

    `is_upgrade`: the client requests a WebSocket. `client` is the client's address: the connection's peer, or
    what trusted proxies report (`server/reverse_proxy.py`). `forwarded` are the forwarding headers for
    workers, behind such proxies. `caller` is the authenticated caller, if any
    (`tenancy/auth/authenticator.py`). `is_trusted`: a trusted proxy set its identity headers. `request_id` is
    the id in the answer, the log and the admin API, set where one is needed first (`server/responder.py`).
    `prompt` has the token ids of a body with a stand-in for them.
    """

    __slots__ = (
        "method",
        "target",
        "headers",
        "body",
        "is_http10",
        "keep_alive",
        "is_upgrade",
        "path",
        "num_held",
        "client",
        "forwarded",
        "caller",
        "is_trusted",
        "request_id",
        "prompt",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: list[Header],
        body: bytes = b"",
        is_http10: bool = False,
        keep_alive: bool = True,
        is_upgrade: bool = False,
    ) -> None:
        self.method = method
        self.target = _normal_form(target if target[:1] == b"/" else _origin_form(target))
        self.headers = headers
        self.body = body
        self.is_http10 = is_http10
        self.keep_alive = keep_alive
        self.is_upgrade = is_upgrade
        self.num_held = 0  # bytes of its body in the budget (`server/body_budget.py`)
        self.path = self.target.partition(b"?")[0].decode("latin-1")
        self.client = ""
        self.forwarded: list[Header] = []
        self.caller: Caller | None = None
        self.is_trusted = False
        self.request_id = b""
        self.prompt: TokenPrompt | None = None

    @property
    def has_query(self) -> bool:
        return self.target.find(b"?") >= 0  # `in` raises and drops a TypeError for bytes: four times the time

    def header(self, name: bytes) -> bytes | None:
        for known, value in self.headers:
            if known == name:
                return value
        return None


_AUTHORITY: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


def _origin_form(target: bytes) -> bytes:
    """Convert the absolute URLs that clients send to forward proxies; servers must accept them (RFC 9112,
    3.2.2)."""
    if target[:1] == b"/" or not (authority := _AUTHORITY.match(target)):
        return target
    rest = target[authority.end() :]
    return rest if rest[:1] == b"/" else b"/" + rest


_MODEL_PATH: Final = re.compile(rb"/+v1/+models/(.*)", re.DOTALL)
_SLASHES: Final = re.compile(rb"//+")


def _normal_form(target: bytes) -> bytes:
    """Return a target without empty segments and a last slash, which base URLs of clients bring along. The
    name of a model in a path stays as it is: it may be a path itself."""
    if target.find(b"//") < 0 and target[-1:] != b"/" and target.find(b"/?") < 0:
        return target
    path, mark, query = target.partition(b"?")
    if b"//" not in path and path[-1:] != b"/":
        return target
    named = _MODEL_PATH.fullmatch(path)
    if named is not None and named[1].strip(b"/"):
        path = b"/v1/models/" + named[1]
    elif path[:1] == b"/":
        path = _SLASHES.sub(b"/", path).rstrip(b"/") or b"/"
    return path + mark + query


@mypyc_attr(acyclic=True)
class OutgoingHead:
    """Request line and headers, in order, as a worker gets them."""

    __slots__ = ("method", "target", "headers")

    def __init__(self, method: str, target: bytes, headers: list[Header]) -> None:
        self.method = method
        self.target = target
        self.headers = headers

    def __repr__(self) -> str:
        return f"OutgoingHead({self.method} {self.target!r}, {len(self.headers)} headers)"

    def encoded(self) -> bytes:
        return encode_head(b"%b %b HTTP/1.1" % (self.method.encode(), self.target), self.headers)


@mypyc_attr(acyclic=True)
class ResponseHead:
    """Response's status and headers; `length` is None where the body's end is not known before."""

    __slots__ = ("status", "headers", "length")

    def __init__(self, status: int, headers: list[Header], length: int | None = None) -> None:
        self.status = status
        self.headers = headers
        self.length = length


def end_to_end(headers: Iterable[Header], drop: Collection[bytes] = HOP_BY_HOP) -> list[Header]:
    """Return the headers that cross a proxy: not in `drop`, not named by Connection, and not with our own
    prefix."""
    crossing: list[Header] = []
    connection = b""
    for header in headers:
        name = header[0]
        if name in drop:
            if name == b"connection":
                connection += b"," + header[1]
        elif name[:9] != OURS:
            crossing.append(header)
    if connection:
        named = {token.strip().lower() for token in connection.split(b",")}
        return [header for header in crossing if header[0] not in named]
    return crossing


def encode_head(first_line: bytes, headers: Sequence[Header]) -> bytes:
    lines = [first_line]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@lru_cache(maxsize=1024)
def status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Unknown"))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"
