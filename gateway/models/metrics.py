"""What operators see of it at each scrape."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.models.catalog import Catalog
from gateway.models.loader import State
from gateway.models.token_source import Maker


class ModelsCollector:
    """`asked` counts calls of workers' `/tokenize` by what came of them."""

    def __init__(self, catalog: Catalog, asked: Counter[str]) -> None:
        self._catalog = catalog
        self._asked = asked

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        broken = GaugeMetricFamily(
            "kvgate_tokenizer_broken",
            "1 if the model's tokenizer is of no use, and it is routed on load; see /admin/tokenizer",
            labels=["model"],
        )
        ways = GaugeMetricFamily(
            "kvgate_tokenized_workers",
            "Endpoints by who makes the tokens that their caches are looked up by",
            labels=["model", "way"],
        )
        for entry in self._catalog:
            broken.add_metric([entry.root], float(entry.shelved.state is State.BROKEN))
            count = Counter(verdict.maker for verdict in entry.verdicts.values())
            for way in Maker:
                ways.add_metric([entry.root, way.value], count[way])
        asked = CounterMetricFamily(
            "kvgate_tokenize_calls",
            "Prompts that workers were to tokenize, by what came of it",
            labels=["outcome"],
        )
        for outcome, num in sorted(self._asked.items()):
            asked.add_metric([outcome], num)
        yield from (broken, ways, asked)
