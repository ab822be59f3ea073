"""The connection pools of this process: one per endpoint, opened at the first request to it."""

from gateway.upstream.access import Ways
from gateway.upstream.connection import Pool, TlsContext


class Pools:
    """`by_url` has the pools that are open. Timeouts are seconds."""

    def __init__(
        self,
        *,
        connect_timeout_s: float = 5.0,
        idle_s: float = 4.0,
        tls_context: TlsContext = lambda: None,
        ways: Ways | None = None,
    ) -> None:
        self.by_url: dict[str, Pool] = {}
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._tls_context = tls_context
        self._ways = Ways() if ways is None else ways

    def __repr__(self) -> str:
        return f"Pools({', '.join(map(repr, self.by_url.values()))})"

    def of(self, url: str) -> Pool:
        pool = self.by_url.get(url)
        if pool is None:
            pool = self.by_url[url] = Pool(
                url,
                connect_timeout_s=self._connect_timeout_s,
                idle_s=self._idle_s,
                tls_context=self._tls_context,
                way=self._ways.of(url),
                reachable=self._ways.reachable,
            )
        return pool

    def limit(self, *, connect_timeout_s: float, idle_s: float) -> None:
        """Other timeouts, also for the pools that are open."""
        self._connect_timeout_s, self._idle_s = connect_timeout_s, idle_s
        for pool in self.by_url.values():
            pool.connect_timeout_s, pool.idle_s = connect_timeout_s, idle_s

    def drop(self, url: str) -> None:
        """Close the pool of an endpoint that has left the fleet."""
        if pool := self.by_url.pop(url, None):
            pool.close()

    def close(self) -> None:
        for pool in self.by_url.values():
            pool.close()
