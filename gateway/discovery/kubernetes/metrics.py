"""Metrics of Kubernetes sources."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.discovery.kubernetes.watched_sources import KubernetesSources
from gateway.observability.metric_spec import counter, gauge

SYNCED = gauge(
    "kvgate_kube_synced_seconds",
    "Seconds since the Kubernetes API last confirmed the workers of the source, by a list, an event or "
    "an accepted watch.",
    "source",
)
WORKERS = gauge("kvgate_kube_endpoints", "Endpoints that the source has in the fleet.", "source")
RELISTS = counter(
    "kvgate_kube_relists_total",
    "Lists of the source's objects after the first one, by reason: interval, expired (410), absent (404), "
    "unreadable.",
    *("source", "reason"),
)
FAILURES = counter("kvgate_kube_failures_total", "Failed requests to the Kubernetes API.", "source")

METRICS = (SYNCED, WORKERS, RELISTS, FAILURES)


class KubernetesCollector(Collector):
    def __init__(self, sources: KubernetesSources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        every = list(self._sources.names.values())
        yield SYNCED.family(self._sources.ages())
        yield WORKERS.family((source.url, len(source.members)) for source in every)
        yield RELISTS.family(
            ((source.url, reason), num) for source in every for reason, num in sorted(source.relists.items())
        )
        yield FAILURES.family((source.url, source.num_failures) for source in every)
