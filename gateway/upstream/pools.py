"""The connection pools of this process: one per endpoint, opened at the first request to it."""

from gateway.config.proxy import ProxySection
from gateway.upstream.access import FleetAccess
from gateway.upstream.connection import DEFAULTS, Pool, TlsContext


class Pools:
    """Pools of endpoints; `by_url` has the open ones. `timeouts` are those of table `[proxy]`."""

    def __init__(
        self,
        timeouts: ProxySection = DEFAULTS,
        *,
        tls_context: TlsContext = lambda: None,
        access: FleetAccess | None = None,
    ) -> None:
        self.by_url: dict[str, Pool] = {}
        self._timeouts = timeouts
        self._tls_context = tls_context
        self._access = FleetAccess() if access is None else access

    def __repr__(self) -> str:
        return f"Pools({', '.join(map(repr, self.by_url.values()))})"

    def of(self, url: str) -> Pool:
        pool = self.by_url.get(url)
        if pool is None:
            pool = self.by_url[url] = Pool(
                url,
                self._timeouts,
                tls_context=self._tls_context,
                access=self._access.of(url),
                reachable=self._access.reachable,
            )
        return pool

    def heard(self, url: str) -> None:
        """Count bytes of an answer that came on a connection outside of the pool."""
        self.of(url).num_reads += 1

    def num_reads(self, url: str) -> int:
        """Return how often bytes of answers came from an endpoint since it joined."""
        pool = self.by_url.get(url)
        return pool.num_reads if pool else 0

    def num_opened(self, url: str) -> int:
        """Return how many connections an endpoint has accepted since it joined."""
        pool = self.by_url.get(url)
        return pool.num_opened if pool else 0

    def limit(self, timeouts: ProxySection) -> None:
        """Other timeouts, also for the pools that are open."""
        self._timeouts = timeouts
        for pool in self.by_url.values():
            pool.limit(timeouts)

    def drop(self, url: str) -> None:
        """Close the pool of an endpoint that has left the fleet."""
        if pool := self.by_url.pop(url, None):
            pool.close()

    def close(self) -> None:
        for pool in self.by_url.values():
            pool.close()
