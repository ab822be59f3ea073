"""How far streams that are BLIND have healed, as Prometheus sees it."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.blind_recovery import RecoveryObserver


class HealerCollector(Collector):
    def __init__(self, healer: RecoveryObserver) -> None:
        self._healer = healer

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, read in metrics:
                family = kind(f"kvgate_heal_{name}", text, labels=["worker"])
                for worker, healing in self._healer.items():
                    family.add_metric([worker], read(healing))
                yield family


_Metrics = tuple[tuple[str, str, Callable[[BlindRecovery], float]], ...]

_GAUGES: _Metrics = (
    ("proven_blocks", "Blocks that answers proved, whose engine hash is not known", lambda h: len(h.proofs)),
    ("orphan_blocks", "Blocks kept aside for want of their parent", lambda h: h.orphans.num_blocks),
)
_COUNTERS: _Metrics = (
    ("placed_blocks", "Orphans that found their place", lambda h: h.counts.num_placed),
    ("withdrawn_blocks", "Proven blocks that an answer proved gone", lambda h: h.counts.num_withdrawn),
    ("announcements", "Requests that asked the engine to announce its hit", lambda h: h.counts.num_reports),
)
