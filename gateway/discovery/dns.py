"""DNS names with several addresses: each address is a worker, and names are resolved periodically.

    dns+http://engines:8000 ──► http://10.0.0.1:8000   joins as any other
                            └─► http://10.0.0.2:8000   no longer in DNS: it drains, and is dropped

A name that cannot be resolved changes nothing: its workers are probed as all are.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.core.worker import Role, Worker
from gateway.discovery.lifecycle import Lifecycle
from gateway.discovery.roster import Roster
from gateway.http.address import DNS, Address
from gateway.http.networks import Reachable
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.roster")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a name to addresses. Raises OSError."""

MAX_ADDRESSES = 1024
"""Workers per name, each of which is probed."""
NO_LONGER_NAMED = "its address is no longer in DNS"


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a name by the system, in a thread."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def member_url(source: str, ip: str) -> str:
    """Return the worker URL of one address of a name."""
    address = Address.of(source.removeprefix(DNS))
    host = f"[{ip}]" if ":" in ip else ip
    scheme = "https" if address.is_tls else "http"
    return f"{scheme}://{host}:{address.port}{address.prefix}"


@dataclass(slots=True)
class DnsName:
    """DNS name with its state. `members` are the URLs of its addresses."""

    url: str
    role: Role | None
    members: set[str] = field(default_factory=set)
    last_error: str | None = None


class Resolver:
    """Keeps the roster in step with DNS names. `inherit` copies a name's settings to a member; arguments: its
    URL, the name's URL, the bare host name."""

    def __init__(
        self,
        roster: Roster,
        lifecycle: Lifecycle,
        *,
        inherit: Callable[[str, str, str], None],
        reachable: Reachable,
        interval_s: float,
        resolve: Resolve = resolve,
    ) -> None:
        self._roster = roster
        self._lifecycle = lifecycle
        self._inherit = inherit
        self._reachable = reachable
        self._interval_s = interval_s
        self._resolve = resolve
        self._log = RateLimitedLog(log)
        self._wake = asyncio.Event()
        self.has_looked = asyncio.Event()
        self.names: dict[str, DnsName] = {}

    def __repr__(self) -> str:
        return f"Resolver({sorted(self.names)})"

    def add(self, url: str, role: Role | None = None) -> bool:
        """Start resolving a name; False if it is known already."""
        if url in self.names:
            return False
        self.names[url] = DnsName(url, role)
        self._wake.set()
        return True

    def drop(self, url: str) -> bool:
        """Drop a name and its workers."""
        if (name := self.names.pop(url, None)) is None:
            return False
        for member in name.members:
            self._roster.drop(member)
        return True

    def is_member(self, url: str) -> bool:
        return any(url in name.members for name in self.names.values())

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self.look()
            self.has_looked.set()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Resolve all names at once: a slow one delays no other."""
        await asyncio.gather(*map(self._look, list(self.names.values())))

    async def _look(self, name: DnsName) -> None:
        address = Address.of(name.url.removeprefix(DNS))
        try:
            found = await self._resolve(address.host, address.port)
        except (OSError, UnicodeError) as exc:
            return self._failed(name, f"cannot be resolved: {getattr(exc, 'strerror', None) or exc}")
        if name.url not in self.names:
            return None  # dropped meanwhile
        if (num_found := len(found)) > MAX_ADDRESSES:
            found = sorted(found)[:MAX_ADDRESSES]  # the same ones the next time
            self._failed(name, f"has {num_found} addresses, using only {MAX_ADDRESSES}")
        good = []
        for ip in found:
            if refusal := self._reachable.refusal(ip):
                self._failed(name, refusal)
            else:
                good.append(member_url(name.url, ip))
        if len(good) == num_found:
            name.last_error = None
        return self._change(name, set(good), address.host) if good else None

    def _change(self, name: DnsName, now: set[str], host: str) -> None:
        for url in sorted(now):
            self._inherit(url, name.url, host)
            self._roster.add(url, name.role)
            if self._lifecycle.why(url) == NO_LONGER_NAMED:
                self._lifecycle.undo(url, self._workers(url))
        left = {url for url in name.members if self._roster.find(url)}
        for url in sorted(left - now):
            self._lifecycle.drain(url, self._workers(url), NO_LONGER_NAMED, is_last=True)
        name.members = now | left

    def _workers(self, url: str) -> tuple[Worker, ...]:
        endpoint = self._roster.find(url)
        return endpoint.workers if endpoint else ()

    def _failed(self, name: DnsName, why: str) -> None:
        if name.last_error != why:
            self._log.warning("DNS name %s: %s", name.url, why)
        name.last_error = why
