"""Cross-origin requests of browsers (CORS, Fetch standard 3.2): origins of pages that may read answers. Pure.

    OPTIONS, Origin, Access-Control-Request-Method ──► preflight: 204, or 403 for another origin
    Origin                                         ──► headers on whatever the answer is, errors too

A preflight carries no credentials, so it is answered before authentication. `*` lets pages of any origin read
answers, but not with the cookies and client certificates of a browser; listed origins may use those too.
"""

import re
from collections.abc import Iterable
from typing import Final

from gateway.core.errors import Forbidden
from gateway.http.messages import Header, HttpRequest

ANY: Final = "*"
MAX_AGE_S: Final = 600
"""Time for which a browser keeps the answer to a preflight: a changed configuration counts soon."""
METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
EXPOSED: Final = (
    b"x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    b"x-kvgate-worker, x-kvgate-overlap-tokens, x-kvgate-decision"
)
"""Headers of answers that scripts may read, beside those that all may."""
MAX_ORIGIN_CHARS: Final = 300

_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#,*@\\]+")
_DEFAULT_PORT: Final = re.compile(r"^(http://.*):80$|^(https://.*):443$")
_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


class CrossOriginPolicy:
    """Origins of pages that may use the API, and the headers that say so to their browsers."""

    def __init__(self, origins: Iterable[str]) -> None:
        """Take origins, or `*`. Raises ValueError for what is neither."""
        self._origins = frozenset(origin_of(text).encode() for text in origins)
        self._allows_any = ANY.encode() in self._origins
        if self._allows_any and len(self._origins) > 1:
            raise ValueError("'*' allows all origins; name no other origin with it")

    def __repr__(self) -> str:
        return f"CrossOriginPolicy({', '.join(sorted(origin.decode() for origin in self._origins))})"

    def headers(self, request: HttpRequest) -> list[Header]:
        """Return the headers for any answer to a request: none where its page may not read it."""
        origin = request.header(b"origin")
        if self._allows_any:
            return [] if origin is None else [*_ANYONE]
        if origin is None or origin not in self._origins:
            return [_VARY]  # a cache must not serve this answer to an allowed page
        return [_VARY, (b"access-control-allow-origin", origin), *_LISTED]

    def preflight(self, request: HttpRequest) -> list[Header] | None:
        """Return the further headers of the answer to a preflight; None if the request is none. Raises
        Forbidden for other origins."""
        if request.method != "OPTIONS" or request.header(b"access-control-request-method") is None:
            return None
        origin = request.header(b"origin")
        if origin is None:
            return None
        if not self._allows_any and origin not in self._origins:
            shown = origin.decode("utf-8", "replace")[:MAX_ORIGIN_CHARS]
            raise Forbidden(f"pages of the origin '{shown}' may not use this API", code="origin_not_allowed")
        wanted = request.header(b"access-control-request-headers")
        if wanted is None or not _NAMES.fullmatch(wanted):
            return [*_PREFLIGHT]
        return [*_PREFLIGHT, (b"access-control-allow-headers", wanted)]


def origin_of(text: str) -> str:
    """Return an origin as browsers write it; `*` as it is. Raises ValueError."""
    if text == ANY:
        return text
    origin = text.lower()
    if len(origin) > MAX_ORIGIN_CHARS or not origin.isascii() or not _ORIGIN.fullmatch(origin):
        raise ValueError(f"'{text}' is not an origin: write scheme://host[:port], without a path, or *")
    if found := _DEFAULT_PORT.match(origin):
        return found[1] or found[2]
    return origin


def check_origins(option: str, texts: Iterable[str]) -> None:
    """Check a list of origins. Raises ValueError that names the option."""
    try:
        CrossOriginPolicy(texts)
    except ValueError as exc:
        raise ValueError(f"{option}: {exc}") from exc


_VARY: Final[Header] = (b"vary", b"Origin")
_EXPOSES: Final[Header] = (b"access-control-expose-headers", EXPOSED)
_ANYONE: Final[tuple[Header, ...]] = ((b"access-control-allow-origin", b"*"), _EXPOSES)
_LISTED: Final[tuple[Header, ...]] = ((b"access-control-allow-credentials", b"true"), _EXPOSES)
_PREFLIGHT: Final[tuple[Header, ...]] = (
    (b"access-control-allow-methods", METHODS),
    (b"access-control-max-age", b"%d" % MAX_AGE_S),
    (b"vary", b"Access-Control-Request-Headers"),
)
