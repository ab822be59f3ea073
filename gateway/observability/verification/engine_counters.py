"""The engine's own counters of prompt tokens and cached prompt tokens, from all of the engine's clients."""

from dataclasses import dataclass

from gateway.core.engine import EngineMetrics


@dataclass(slots=True, eq=False)
class EngineCounters:
    """Tokens since the worker joined; None before the first scrape with counters. A count lower than before
    means a new engine process, which began at 0."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    _queries: int = 0
    _hits: int = 0

    def scraped(self, metrics: EngineMetrics) -> None:
        queries, hits = metrics.prefix_cache_queries_total, metrics.prefix_cache_hits_total
        if queries is None or hits is None or not 0 <= hits <= queries:
            return
        if self.prompt_tokens is None or self.cached_tokens is None:
            self.prompt_tokens = self.cached_tokens = 0
        else:
            is_same = queries >= self._queries and hits >= self._hits
            self.prompt_tokens += queries - self._queries if is_same else queries
            self.cached_tokens += hits - self._hits if is_same else hits
        self._queries, self._hits = queries, hits
