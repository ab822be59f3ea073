"""Declarations of kvgate's metrics: name, type, labels, help text, and how several processes merge them.

A collector declares each metric once, beside the code that reads it, and lists its declarations in `METRICS`.
`docs/reference/metrics.md` (`processes/metric_reference.py`) and the merge of several processes' pages
(`processes/metrics_merge.py`) go by these lists.
`tests/processes/test_metric_reference.py` holds the rules for names and help texts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.observability.metrics import Histogram

Key = str | tuple[str, ...]
"""The values of a metric's labels; a plain string where there is one label."""


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(Enum):
    """How the values of several processes become one."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric as `/metrics` exposes it; a counter's name includes `_total`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    merge: Merge = Merge.SUM

    def single(self, value: float) -> Metric:
        """The metric without labels."""
        return self.family([((), value)])

    def family(self, rows: Iterable[tuple[Key, float]]) -> Metric:
        """A counter or gauge with one sample per row."""
        made = CounterMetricFamily if self.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = made(self.name, self.help, labels=self.labels)
        for key, value in rows:
            family.add_metric(_values(key), value)
        return family

    def histograms(self, rows: Iterable[tuple[Key, Histogram]]) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for key, histogram in rows:
            family.add_metric(_values(key), histogram.buckets(), histogram.sum)
        return family


def counter(name: str, text: str, *labels: str, merge: Merge = Merge.SUM) -> MetricSpec:
    """A counter, added over processes unless all of them count the same events."""
    return MetricSpec(name, MetricKind.COUNTER, text, labels, merge)


def gauge(name: str, text: str, *labels: str, merge: Merge = Merge.MAX) -> MetricSpec:
    """A gauge; by default all processes measure the same thing, and the highest value is shown."""
    return MetricSpec(name, MetricKind.GAUGE, text, labels, merge)


def histogram(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, text, labels)


def _values(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key
