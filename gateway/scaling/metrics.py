"""Metrics of the advice for autoscalers."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.worker import Role
from gateway.observability.metric_spec import Merge, MetricSpec, gauge
from gateway.scaling.advice import Advice
from gateway.scaling.split import SplitAdvice

OF = ("model", "role")

_GAUGES: Sequence[tuple[MetricSpec, Callable[[Advice], float | None]]] = (
    (
        gauge(
            "kvgate_scaling_desired_workers",
            "Workers that would serve this gateway's requests within the objectives, steadied: rises at "
            "once, falls after scaling.down_after_s. Not rounded, so that gateways can be added up.",
            *OF,
            merge=Merge.SUM,
        ),
        lambda a: a.level,
    ),
    (
        gauge(
            "kvgate_scaling_needed_workers",
            "Workers that would serve this gateway's requests of the last minute within the objectives.",
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
    (
        gauge(
            "kvgate_scaling_needed_low_workers",
            "Lower end of an interval of 90 % around kvgate_scaling_needed_workers.",
            *OF,
            merge=Merge.SUM,
        ),
        lambda a: a.low,
    ),
    (
        gauge(
            "kvgate_scaling_needed_high_workers",
            "Upper end of an interval of 90 % around kvgate_scaling_needed_workers.",
            *OF,
            merge=Merge.SUM,
        ),
        lambda a: a.high,
    ),
    (
        gauge(
            "kvgate_scaling_cold_start_seconds",
            "Seconds from the need of a worker until one joins, median of the latest; absent before that.",
            *OF,
        ),
        lambda a: a.cold_start_s,
    ),
)

_DEMAND = gauge(
    "kvgate_scaling_demand_tokens_per_second",
    "Prompt tokens to compute, and output tokens, that this gateway's requests ask for, by kind.",
    *OF,
    "kind",
    merge=Merge.SUM,
)
_CAPACITY = gauge(
    "kvgate_scaling_worker_capacity_tokens_per_second",
    "Tokens of such requests that one worker serves within the objectives, by kind.",
    *OF,
    "kind",
)
_REMOVAL = gauge(
    "kvgate_scaling_removal_cost_tokens",
    "Tokens that no other worker has cached: the cost of losing this one. Absent where that is not known.",
    *OF,
    "worker",
)

_SHARE = gauge(
    "kvgate_scaling_prefill_share_ratio",
    "Share of prefill workers, from 0 to 1, at which prefill and decode workers serve most requests of the "
    "last five minutes within the objectives.",
    "model",
)
_SPLIT = gauge(
    "kvgate_scaling_split_workers",
    "Prefill and decode workers that serve most requests, of as many as accept requests now; changes only "
    "where that serves surely more. Absent with fewer than two.",
    *OF,
)

METRICS = (*(spec for spec, _ in _GAUGES), _DEMAND, _CAPACITY, _REMOVAL, _SHARE, _SPLIT)


class ScalingCollector(Collector):
    def __init__(
        self, advices: Callable[[], Sequence[Advice]], splits: Callable[[], Sequence[SplitAdvice]]
    ) -> None:
        self._advices, self._splits = advices, splits

    def collect(self) -> Iterator[Metric]:
        advices = self._advices()
        for spec, read in _GAUGES:
            rows = [((each.model, each.role.value), read(each)) for each in advices]
            yield spec.family((key, value) for key, value in rows if value is not None)
        yield _DEMAND.family(_tokens(advices, lambda each: each.requests_per_s))
        yield _CAPACITY.family(_tokens(advices, lambda each: each.worker_requests_per_s))
        yield _REMOVAL.family(
            ((each.model, each.role.value, cost.worker), float(cost.unique_cached_tokens))
            for each in advices
            for cost in each.removals
            if cost.unique_cached_tokens is not None
        )
        splits = self._splits()
        yield _SHARE.family(((each.model,), each.share) for each in splits)
        yield _SPLIT.family(
            ((each.model, role.value), float(num))
            for each in splits
            if each.workers is not None
            for role, num in zip((Role.PREFILL, Role.DECODE), each.workers, strict=True)
        )


def _tokens(
    advices: Sequence[Advice], rate: Callable[[Advice], float]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Rows of tokens per second by kind, at a rate of requests per second."""
    for each in advices:
        for kind, num in (("prompt", each.mix.prompt_tokens), ("output", each.mix.output_tokens)):
            yield (each.model, each.role.value, kind), rate(each) * num
