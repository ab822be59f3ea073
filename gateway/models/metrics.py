"""Metrics of tokenizers and token sources."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.models.catalog import Catalog
from gateway.models.loader import LoadState
from gateway.models.token_source import TokenSource


class ModelsCollector:
    """Collector of a catalog's metrics; `asked` counts calls of workers' `/tokenize` by outcome."""

    def __init__(self, catalog: Catalog, asked: Counter[str]) -> None:
        self._catalog = catalog
        self._asked = asked

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        broken = GaugeMetricFamily(
            "kvgate_tokenizer_broken",
            "1 if the model's tokenizer is broken and the model is routed on load; see /admin/tokenizer",
            labels=["model"],
        )
        ways = GaugeMetricFamily(
            "kvgate_tokenized_workers",
            "Endpoints by the token source for their cache lookups",
            labels=["model", "way"],
        )
        for entry in self._catalog:
            broken.add_metric([entry.root], float(entry.tokenizer.state is LoadState.BROKEN))
            count = Counter(choice.token_source for choice in entry.choices.values())
            for way in TokenSource:
                ways.add_metric([entry.root, way.value], count[way])
        asked = CounterMetricFamily(
            "kvgate_tokenize_calls",
            "Prompts sent to workers' /tokenize, by outcome",
            labels=["outcome"],
        )
        for outcome, num in sorted(self._asked.items()):
            asked.add_metric([outcome], num)
        yield from (broken, ways, asked)
