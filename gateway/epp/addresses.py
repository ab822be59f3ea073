"""Addresses of workers as Envoy takes them, also of those with host names in their URLs.

    URL with an address    ip:port of it
    URL with a name        None ─ look_up ─► ip:port ─ FRESH_S later, at a pick ─► looked up again meanwhile

A worker that was restarted elsewhere keeps its name. The last address stays where a look-up fails.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from gateway.discovery.dns import Resolve, resolve
from gateway.epp.destination import endpoint_of, joined
from gateway.http.address import Address
from gateway.runtime.tasks import Tasks

FRESH_S: Final = 10.0
"""Age of a looked-up address, or of a failed look-up, at which the name is looked up again."""


class Addresses:
    """Known addresses by the URLs of workers. Times are on the loop's clock."""

    __slots__ = ("_known", "_due_s", "_resolve")

    def __init__(self, resolve: Resolve = resolve) -> None:
        self._known: dict[str, str] = {}
        self._due_s: dict[str, float] = {}
        self._resolve = resolve

    def __repr__(self) -> str:
        return f"Addresses({self._known})"

    def of(self, url: str) -> str | None:
        """The address of a worker; None for a name that was not looked up yet, or cannot be."""
        found = self._known.get(url)
        if found is None and (found := endpoint_of(url)) is not None:
            self._known[url] = found
        return found

    def is_missing(self, url: str, now: float) -> bool:
        """True for a name without an address, unless a look-up has just failed."""
        return self.of(url) is None and now >= self._due_s.get(url, 0.0)

    def renew(self, url: str, tasks: Tasks, now: float) -> None:
        """Look a name up again, if that is due; picks go on with the last address meanwhile."""
        due_s = self._due_s.get(url)
        if due_s is not None and now >= due_s:
            self._due_s[url] = now + FRESH_S
            tasks.start("resolve a worker again", self.look_up(url, now))

    async def look_up_missing(self, urls: Iterable[str], now: float) -> None:
        """Resolve the names among these URLs that have no address yet, all at once."""
        missing = [url for url in urls if self.is_missing(url, now)]
        await asyncio.gather(*[self.look_up(url, now) for url in missing])

    async def look_up(self, url: str, now: float) -> None:
        """Resolve a worker's name; IPv4 goes first, since a worker may listen there only."""
        try:
            address = Address.of(url)
            found = sorted(await self._resolve(address.host, address.port), key=lambda ip: ":" in ip)
            endpoint = joined(found[0], address.port) if found and address.unix_path is None else None
        except (OSError, ValueError):  # UnicodeError is a ValueError
            endpoint = None
        self._due_s[url] = now + FRESH_S
        if endpoint is not None:
            self._known[url] = endpoint
