"""Requests to the Kubernetes API: a page of a list, and the lines of a watch. Answers are bounded.

A connection that is half open is noticed by TCP keepalives, within half a minute, or by its silence.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from gateway.discovery.kubernetes.api_objects import ApiStatus, status_of
from gateway.discovery.kubernetes.cluster import ClusterAccess
from gateway.discovery.kubernetes.reflector import ApiFailure
from gateway.http.retry_after import retry_after_s
from gateway.upstream.control_client import failure, read_all

PAGE_OBJECTS = 200
"""Objects per page: some 2 MB of pods, which decode in 2 ms."""
MAX_PAGE_BYTES = 64 << 20
"""Largest page: each object has some 10 KB, and at most 1.5 MB."""
MAX_LINE_BYTES = 4 << 20
"""Largest line of a watch: the API stores no object over 1.5 MB."""
MAX_ERROR_BYTES = 64 << 10
TIMEOUT_S = 30.0
"""Timeout of a page, and of the head of a watch's answer."""
WATCH_SLACK_S = 10.0
"""Time by which a server may end a watch later than it was asked to."""
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


class ApiRequestFailed(Exception):
    """Failed request."""

    def __init__(self, found: ApiFailure) -> None:
        super().__init__(found.reason)
        self.failure = found


class WatchSilent(Exception):
    """No line for too long."""


class ByteStream(Protocol):
    async def readany(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ApiQuery:
    """Objects of one kind: the path of their collection, and selectors."""

    path: str
    label_selector: str = ""
    field_selector: str = ""

    @property
    def params(self) -> dict[str, str]:
        both = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in both.items() if value}


class ApiClient:
    """Client of one API server."""

    def __init__(self, cluster: ClusterAccess, timeout_s: float = TIMEOUT_S) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"ApiClient({self._cluster.url})"

    async def close(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def page(self, query: ApiQuery, token: str) -> bytes:
        """Return a page of a list. Raises ApiRequestFailed."""
        params = query.params | {"limit": str(PAGE_OBJECTS)} | ({"continue": token} if token else {})
        try:
            async with asyncio.timeout(self._timeout_s), self._get(query.path, params) as answer:
                await _check(answer)
                return await read_all(answer, MAX_PAGE_BYTES)
        except TimeoutError as exc:
            raise ApiRequestFailed(ApiFailure("no answer in time")) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise ApiRequestFailed(ApiFailure(failure(exc))) from exc

    @asynccontextmanager
    async def watch(
        self, query: ApiQuery, version: str, timeout_s: float, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch, which the server ends after `timeout_s`. Both raise ApiRequestFailed; the
        lines raise WatchSilent after `silence_s` without one."""
        params = query.params | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(int(timeout_s), 1)),
        }
        answer: aiohttp.ClientResponse | None = None
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._get(query.path, params)
                    await _check(answer)
            except TimeoutError as exc:
                raise ApiRequestFailed(ApiFailure("no answer in time")) from exc
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                raise ApiRequestFailed(ApiFailure(failure(exc))) from exc
            yield lines(answer.content, silence_s, timeout_s + WATCH_SLACK_S)
        finally:
            if answer is not None:
                answer.close()

    def _get(self, path: str, params: Mapping[str, str]) -> Any:
        if self._session is None:
            connector = aiohttp.TCPConnector(socket_factory=keepalive_socket, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout())
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kvgate"}
        if authorization := self._cluster.authorization:
            headers["Authorization"] = authorization
        ssl = True if (context := self._cluster.context) is None else context
        url = self._cluster.url + path
        return self._session.get(url, params=params, headers=headers, ssl=ssl, allow_redirects=False)


async def lines(content: ByteStream, silence_s: float, timeout_s: float) -> AsyncIterator[bytes]:
    """Split a watch into its lines, until it ends or `timeout_s` is over. Raises ApiRequestFailed for one
    that is cut or too long, WatchSilent after `silence_s` without bytes."""
    clock = asyncio.get_running_loop().time
    deadline, rest = clock() + timeout_s, bytearray()
    while clock() < deadline:
        try:
            async with asyncio.timeout(silence_s):
                piece = await content.readany()
        except TimeoutError as exc:
            raise WatchSilent from exc
        except aiohttp.ClientPayloadError as exc:
            raise ApiRequestFailed(ApiFailure("the watch was aborted")) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ApiRequestFailed(ApiFailure(failure(exc))) from exc
        if not piece:
            break
        rest += piece
        if b"\n" in piece:
            *whole, last = rest.split(b"\n")
            rest = last
            for line in whole:
                if line.strip():
                    yield bytes(line)
        if len(rest) > MAX_LINE_BYTES:
            text = f"a line over {MAX_LINE_BYTES:,} bytes"
            raise ApiRequestFailed(ApiFailure(text, is_unreadable=True))
    if rest.strip():
        raise ApiRequestFailed(ApiFailure("the watch ended within a line"))


def keepalive_socket(found: Any) -> socket.socket:
    """Make a socket that notices a peer that is gone, from an entry of getaddrinfo."""
    family, kind, protocol, _, _ = found
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # as far as the system has them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Accept a 200. Raises ApiRequestFailed for any other answer."""
    if answer.status == 200:
        return
    try:
        status = status_of(await read_all(answer, MAX_ERROR_BYTES))
    except (aiohttp.ClientError, OSError, ValueError):
        status = ApiStatus()
    reason = f"{answer.status} {status.message or answer.reason or ''}".strip()
    headers = [(name.lower(), value) for name, value in answer.raw_headers]
    raise ApiRequestFailed(ApiFailure(reason, answer.status, retry_after_s(headers, time.time()) or 0.0))
