"""Metrics of warming."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, counter, gauge
from gateway.warming.hot_prefixes import HotPrefixes

REQUESTS = counter(
    "kvgate_warming_requests_total",
    "Prefixes sent to joining workers, by result: done, cancelled (a client's request needed the worker) or "
    "failed. No other metric counts such requests.",
    "result",
)
TOKENS = counter(
    "kvgate_warming_tokens_total", "Tokens of prefixes that joining workers lacked and have computed."
)
SECONDS = counter("kvgate_warming_seconds_total", "Seconds in which joining workers were computing prefixes.")
SKIPPED = counter(
    "kvgate_warming_skipped_total",
    "Joins of workers that were sent no prefix, by reason: no_prefixes (none worth sending), "
    "cache_size_unknown, no_token_ids (the engine takes none) or role (a decode worker).",
    "reason",
)
KEPT = gauge(
    "kvgate_warming_kept_bytes",
    "Bytes of memory for the hashes and token ids of prefixes.",
    merge=Merge.SUM,
)
METRICS = (REQUESTS, TOKENS, SECONDS, SKIPPED, KEPT)


@dataclass(slots=True, eq=False)
class WarmingCounts:
    requests: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    skipped: Counter[str] = field(default_factory=Counter)


class WarmingCollector(Collector):
    def __init__(self, counts: WarmingCounts, prefixes: HotPrefixes) -> None:
        self._counts, self._prefixes = counts, prefixes

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield REQUESTS.family(counts.requests.items())
        yield TOKENS.single(counts.tokens)
        yield SECONDS.single(counts.seconds)
        yield SKIPPED.family(counts.skipped.items())
        yield KEPT.single(self._prefixes.num_bytes)
