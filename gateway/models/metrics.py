"""Metrics of tokenizers: broken ones, the token source per model, and calls of workers' `/tokenize`."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.models.catalog import Catalog
from gateway.models.loader import LoadState
from gateway.observability.metric_spec import counter, gauge
from gateway.parity.token_source import TokenSource

BROKEN = gauge(
    "kvgate_tokenizer_broken",
    "1 if the model's tokenizer is unusable and the model is routed by load alone, else 0; see "
    "/admin/tokenizer.",
    "model",
)
SOURCES = gauge(
    "kvgate_token_source_endpoints",
    "Endpoints that serve the model, by source of prompt tokens.",
    "model",
    "source",
)
CALLS = counter(
    "kvgate_tokenize_calls_total", "Prompts that needed a worker's /tokenize, by result.", "result"
)

METRICS = (BROKEN, SOURCES, CALLS)


class ModelsCollector(Collector):
    """`asked` counts calls of workers' `/tokenize` by result."""

    def __init__(self, catalog: Catalog, asked: Counter[str]) -> None:
        self._catalog = catalog
        self._asked = asked

    def collect(self) -> Iterator[Metric]:
        entries = list(self._catalog)
        yield BROKEN.family(
            (entry.root, float(entry.tokenizer.state is LoadState.BROKEN)) for entry in entries
        )
        counts = [
            (entry.root, Counter(choice.token_source for choice in entry.choices.values()))
            for entry in entries
        ]
        yield SOURCES.family(
            ((root, source.value), count[source]) for root, count in counts for source in TokenSource
        )
        yield CALLS.family(sorted(self._asked.items()))
