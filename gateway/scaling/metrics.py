"""Metrics of the advice for autoscalers."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, MetricSpec, gauge
from gateway.scaling.advice import Advice

OF = ("model", "role")

_GAUGES: Sequence[tuple[MetricSpec, Callable[[Advice], float | None]]] = (
    (
        gauge(
            "kvgate_scaling_desired_workers",
            "Workers that would serve this gateway's requests within the TTFT objective, steadied: rises at "
            "once, falls after scaling.down_after_s. Not rounded, so that gateways can be added up.",
            *OF,
            merge=Merge.SUM,
        ),
        lambda a: a.level,
    ),
    (
        gauge(
            "kvgate_scaling_needed_workers",
            "Workers that would serve this gateway's requests of the last minute within the TTFT objective.",
            *OF,
            merge=Merge.SUM,
        ),
        lambda a: a.needed,
    ),
    (
        gauge("kvgate_scaling_workers", "Workers that accept requests.", *OF),
        lambda a: a.num_up,
    ),
    (
        gauge(
            "kvgate_scaling_active",
            "1 if requests came in the last minute, wait or run, else 0.",
            *OF,
        ),
        lambda a: float(a.is_active),
    ),
    (
        gauge("kvgate_scaling_queued_requests", "Requests that wait in the gateway.", *OF, merge=Merge.SUM),
        lambda a: a.num_queued,
    ),
    (
        gauge(
            "kvgate_scaling_backlog_seconds",
            "Seconds in which the workers compute all prompts that wait; absent without a worker.",
            *OF,
        ),
        lambda a: a.backlog_s,
    ),
    (
        gauge(
            "kvgate_scaling_ttft_seconds",
            "Predicted seconds to the first token of a request that arrives now; absent without a worker.",
            *OF,
        ),
        lambda a: a.ttft_s,
    ),
    (
        gauge(
            "kvgate_scaling_slo_attainment_ratio",
            "Share of the last five minutes' requests that met the TTFT objective, from 0 to 1; requests "
            "that no worker got count as missed. Absent without requests.",
            *OF,
            merge=Merge.MIN,
        ),
        lambda a: a.attainment,
    ),
)

METRICS = tuple(spec for spec, _ in _GAUGES)


class ScalingCollector(Collector):
    def __init__(self, advices: Callable[[], Sequence[Advice]]) -> None:
        self._advices = advices

    def collect(self) -> Iterator[Metric]:
        advices = self._advices()
        for spec, read in _GAUGES:
            rows = [((each.model, each.role.value), read(each)) for each in advices]
            yield spec.family((key, value) for key, value in rows if value is not None)
