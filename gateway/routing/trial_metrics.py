"""Scores and comparisons as Prometheus sees them."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.routing.policy_score import Score
from gateway.routing.shadow import Comparison
from gateway.routing.trials import Trials


class TrialsCollector(Collector):
    def __init__(self, trials: Trials) -> None:
        self._trials = trials

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        trials = self._trials
        if not trials.is_on:
            return
        for name, text, read in _SCORES:
            yield _by_policy(name, text, ((policy, read(score)) for policy, score in trials.scores.items()))
        ttft = HistogramMetricFamily(
            "kvgate_policy_ttft_seconds", "Time to first token of streamed answers", labels=["policy"]
        )
        for policy, score in trials.scores.items():
            ttft.add_metric([policy], score.ttft_s.buckets(), score.ttft_s.sum)
        yield ttft
        for name, text, look in _COMPARISONS:
            rows = ((policy, look(each)) for policy, each in trials.comparisons.items())
            yield _by_policy(name, text, rows)
        dropped = CounterMetricFamily("kvgate_shadow_dropped", "Decisions that shadows had no time for")
        dropped.add_metric([], trials.num_dropped)
        yield dropped


_SCORES: tuple[tuple[str, str, Callable[[Score], float]], ...] = (
    ("policy_requests", "Requests that the policy placed", lambda s: s.num_requests),
    ("policy_errors", "Of those, how many failed or were cut", lambda s: s.num_errors),
    (
        "policy_reported_prompt_tokens",
        "Prompt tokens, where answers told",
        lambda s: s.reported_prompt_tokens,
    ),
    ("policy_reported_cached_tokens", "Of those, cached ones", lambda s: s.reported_cached_tokens),
    ("policy_predicted_ttft_seconds", "Sum of what it predicted", lambda s: s.promises.predicted_s),
    ("policy_ttft_error_seconds", "Sum of |predicted - happened|", lambda s: s.promises.same_error_s),
)

_COMPARISONS: tuple[tuple[str, str, Callable[[Comparison], float]], ...] = (
    ("shadow_compared", "Decisions that the shadow was asked too", lambda c: c.num_compared),
    ("shadow_agreed", "Of those, how many it would have made too", lambda c: c.num_agreed),
    ("shadow_prompt_tokens", "Their prompt tokens", lambda c: c.prompt_tokens),
    ("shadow_overlap_tokens", "Held where the shadow would have gone", lambda c: c.overlap_tokens),
    ("shadow_live_overlap_tokens", "Held where they went", lambda c: c.live_overlap_tokens),
    ("shadow_predicted_ttft_seconds", "Sum of what it predicted", lambda c: c.promises.predicted_s),
    ("shadow_happened_ttft_seconds", "Sum of what came for those", lambda c: c.promises.happened_s),
    ("shadow_faults", "Decisions at which the shadow failed", lambda c: c.faults.total()),
)


def _by_policy(name: str, text: str, rows: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(f"kvgate_{name}", text, labels=["policy"])
    for policy, value in rows:
        family.add_metric([policy], value)
    return family
