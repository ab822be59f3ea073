"""Public keys of a token issuer: a JWKS (RFC 7517) from a file or a URL, fetched in the background.

    now, then every `refresh_s`, and sooner where a token names an unknown key ─► `use(text)`

On a failure the previous keys stay in use; it is logged once until a fetch succeeds again. PyJWT's
`PyJWKClient` fetches within the request that needs a key, blocks, reads answers of any size, and knows an RSA
key without `alg` for RS256 only.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp

from gateway.core.errors import ConfigError
from gateway.http.url import Url

log = logging.getLogger("kvgate.keys")

FETCH_TIMEOUT_S = 10.0
MIN_INTERVAL_S = 5.0
"""Seconds between two fetches: unknown key ids in tokens cannot make the gateway poll the issuer faster."""
MAX_BYTES = 1 << 20
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

REDIRECTS = frozenset({301, 302, 303, 307, 308})
UNUSABLE = (OSError, aiohttp.ClientError, ValueError, TypeError, ArithmeticError, RecursionError)
"""Errors of an issuer's answer: a list where a name belongs is a TypeError, a TimeoutError is an OSError."""

Use = Callable[[bytes], None]
"""Parses and applies a JWKS, or raises ValueError with the reason."""


class Jwks:
    def __init__(
        self, source: str, use: Use, *, refresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Check the source; a file is read at once. Raises ConfigError."""
        self._clock = clock
        self._fetched_s = clock()
        self.source = source
        self.fetches: Counter[str] = Counter()
        self._use = use
        self._refresh_s = refresh_s
        self._wanted = asyncio.Event()
        self._was_well = True
        self._is_url = source.lower().startswith(("http://", "https://"))
        if self._is_url:
            _check(source)
        else:
            try:
                self._use(self._read())
            except UNUSABLE as exc:
                raise ConfigError(f"jwt_keys: {source} cannot be used: {_words(exc)}") from exc

    def __repr__(self) -> str:
        return f"Jwks({self.source}, {dict(self.fetches)})"

    @property
    def age_s(self) -> float:
        """Seconds since the last fetch that succeeded, or since the start."""
        return max(self._clock() - self._fetched_s, 0.0)

    def want(self) -> None:
        """Request an early fetch: a token names an unknown key."""
        self._wanted.set()

    async def keep(self) -> None:
        """Fetch periodically until cancelled."""
        while True:
            self._wanted.clear()
            await self.fetch()
            await asyncio.sleep(min(MIN_INTERVAL_S, self._refresh_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._refresh_s - MIN_INTERVAL_S, 0.0)):
                    await self._wanted.wait()

    async def fetch(self) -> None:
        try:
            self._use(await (self._ask() if self._is_url else asyncio.to_thread(self._read)))
        except UNUSABLE as exc:
            self.fetches["failed"] += 1
            if self._was_well:
                log.error(
                    "JWKS %s: fetch failed; tokens of removed keys still work, keeping the previous keys: %s",
                    self.source,
                    _words(exc),
                )
            self._was_well = False
        else:
            self.fetches["fetched"] += 1
            self._fetched_s = self._clock()
            if not self._was_well:
                log.info("JWKS %s: fetch succeeded again", self.source)
            self._was_well = True

    def _read(self) -> bytes:
        with Path(self.source).expanduser().open("rb") as file:
            return file.read(MAX_BYTES)

    async def _ask(self) -> bytes:
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self.source, headers={"Accept": "application/json"}, allow_redirects=False) as answer,
        ):
            if answer.status in REDIRECTS:  # it might lead to a URL without TLS, or to another network
                raise ValueError(f"status {answer.status}, a redirect; configure the URL that it leads to")
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            body = b""
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"response larger than {MAX_BYTES} bytes")
            return body


def _check(source: str) -> None:
    """Check that keys of a URL cannot be tampered with on their way. Raises ConfigError."""
    try:
        url = Url.of(source)
    except ValueError as exc:
        raise ConfigError(f"jwt_keys: {exc}") from exc
    if url.scheme == "http" and url.host not in LOOPBACK:
        raise ConfigError(f"jwt_keys: {source}: keys fetched without TLS can be forged; use https")


def _words(exc: BaseException) -> str:
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
