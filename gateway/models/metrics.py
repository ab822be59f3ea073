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
    """Metrics of tokenizers and token sources; `asked` counts calls of workers' `/tokenize` by result."""

    def __init__(self, catalog: Catalog, asked: Counter[str]) -> None:
        self._catalog = catalog
        self._asked = asked

    def collect(self) -> Iterator[Metric]:
        broken: dict[str, bool] = {}
        counts: dict[str, Counter[TokenSource]] = {}
        for entry in self._catalog:  # one for each rendering of a root
            is_broken = entry.tokenizer.state is LoadState.BROKEN
            broken[entry.root] = broken.get(entry.root, False) or is_broken
            counts.setdefault(entry.root, Counter()).update(
                choice.token_source for choice in entry.choices.values()
            )
        yield BROKEN.family((root, float(is_broken)) for root, is_broken in broken.items())
        yield SOURCES.family(
            ((root, source.value), count[source]) for root, count in counts.items() for source in TokenSource
        )
        yield CALLS.family(sorted(self._asked.items()))
