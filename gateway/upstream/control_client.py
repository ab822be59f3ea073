"""Control calls to workers: probes, `/tokenize`, `kvgate check`.

One session for all TCP endpoints, one for each Unix socket; https is verified as on the data path.
"""

import socket
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver

from gateway.core.causes import cause_of
from gateway.core.json_values import encode
from gateway.http.address import Address
from gateway.http.networks import Reachable, name_refusal
from gateway.runtime import process_limits as host
from gateway.runtime.tls import Tls, reason
from gateway.upstream.access import FleetAccess

MAX_ANSWER_BYTES = 8 << 20
MAX_POSTED_BYTES = 64 << 10
"""Largest answer to a question of the gateway's own, which are short and so are their answers."""


class ControlSession:
    """Session for control calls. `timeout_s` bounds a whole call, None leaves that to the caller; `headers`
    go with each call."""

    def __init__(
        self,
        tls: Tls | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        access: FleetAccess | None = None,
    ) -> None:
        self._tls = tls
        self._access = access or FleetAccess()
        self.timeout_s = timeout_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = headers
        self._sessions: dict[str | None, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> "ControlSession":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def call(
        self, method: str, endpoint: str, path: str, **options: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Request a path of an endpoint, given by its base URL. Raises what aiohttp raises; see `failure`."""
        address = Address.of(endpoint)
        base = f"http://{address.netloc}" if address.unix_path else address.url
        if address.is_tls and self._tls:
            options["ssl"] = self._tls.context
        access = self._access.of(address.url)
        if access.authorization:
            options["headers"] = _with_key(options.get("headers") or {}, access.authorization)
        if access.server_name and address.is_tls:
            options["server_hostname"] = access.server_name
            options["headers"] = {**(options.get("headers") or {}), "Host": access.host(address)}
        if refusal := self._access.refusal(address.url):
            raise AddressNotAllowed(refusal)
        session = self._session(address.unix_path)
        return session.request(method, base + path, allow_redirects=False, **options)

    def address_refusal(self, address: str) -> str | None:
        """Explain why an address is not allowed; None where it is."""
        return self._access.reachable.refusal(address)

    async def post(
        self, endpoint: str, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> bytes | None:
        """Post a JSON body and return the answer; None if it is not a complete, short 200."""
        data, headers = encode(body), {"content-type": "application/json", **(headers or {})}
        try:
            async with self.call("POST", endpoint, path, data=data, headers=headers) as answer:
                return await read_all(answer, MAX_POSTED_BYTES) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _tcp(self) -> aiohttp.TCPConnector:
        resolver, limit = _Resolver(self._access.reachable), host.descriptors().max_calls
        return aiohttp.TCPConnector(resolver=resolver, ttl_dns_cache=1, limit=limit)

    def _session(self, unix_path: str | None) -> aiohttp.ClientSession:
        session = self._sessions.get(unix_path)
        if session is None:
            connector = aiohttp.UnixConnector(unix_path) if unix_path else self._tcp()
            session = self._sessions[unix_path] = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, headers=self._headers, trace_configs=[_TRACE]
            )
        return session


class CallProgress:
    """Progress of one call, given to `call` as `trace_request_ctx`."""

    is_accepted = False
    """A connection was accepted, or an earlier one is used."""


async def _connected(session: aiohttp.ClientSession, context: Any, params: object) -> None:
    if isinstance(progress := context.trace_request_ctx, CallProgress):
        progress.is_accepted = True


_TRACE = aiohttp.TraceConfig()
_TRACE.on_connection_create_end.append(_connected)
_TRACE.on_connection_reuseconn.append(_connected)


class AddressNotAllowed(ValueError):
    """Address at which no worker may be."""


class _Resolver(ThreadedResolver):
    """DNS resolver that returns only addresses allowed for workers."""

    def __init__(self, reachable: Reachable) -> None:
        super().__init__()
        self._reachable = reachable

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if refusal := name_refusal(host):
            raise OSError(None, refusal)
        found = await super().resolve(host, port, family)
        refusals = [self._reachable.refusal(each["host"]) for each in found]
        good = [each for each, refusal in zip(found, refusals, strict=True) if refusal is None]
        if not good and refusals:
            raise OSError(None, f"{host}: {refusals[0]}")
        return good


def _with_key(headers: Mapping[str, str], authorization: str) -> dict[str, str]:
    others = {n: v for n, v in headers.items() if n.lower() not in ("authorization", "x-api-key")}
    return {**others, "authorization": authorization}


async def read_all(answer: aiohttp.ClientResponse, max_bytes: int | None = None) -> bytes:
    """Read a whole answer. Raises ValueError for one that is too long, and what aiohttp raises."""
    body, max_bytes = bytearray(), MAX_ANSWER_BYTES if max_bytes is None else max_bytes
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise ValueError(f"the answer is over {max_bytes:,} bytes")
    return bytes(body)


def failure(exc: Exception) -> str:
    """Describe for people why a call failed."""
    if words := reason(exc):
        return words
    if isinstance(exc, aiohttp.ClientConnectorError):  # its text names aiohttp's settings and sockets
        return f"cannot connect: {cause_of(exc)}"
    return str(exc) or type(exc).__name__
