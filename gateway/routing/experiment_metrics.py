"""Metrics of A/B tests and shadow policies."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import MetricSpec, counter, histogram
from gateway.routing.experiments import PolicyExperiments
from gateway.routing.policy_score import PolicyScore
from gateway.routing.shadow import ShadowComparison

TTFT = histogram(
    "kvgate_policy_ttft_seconds",
    "Time to first token of streamed answers in seconds, by the policy that chose the worker.",
    "policy",
)
DROPPED = counter(
    "kvgate_shadow_dropped_decisions_total", "Decisions that shadow policies skipped because of a full queue."
)

_SCORES: tuple[tuple[MetricSpec, Callable[[PolicyScore], float]], ...] = (
    (
        counter("kvgate_policy_requests_total", "Requests for which the policy chose the worker.", "policy"),
        lambda s: s.num_requests,
    ),
    (
        counter(
            "kvgate_policy_failed_requests_total",
            "Requests that failed or were aborted, by the policy that chose the worker.",
            "policy",
        ),
        lambda s: s.num_errors,
    ),
    (
        counter(
            "kvgate_policy_reported_prompt_tokens_total",
            "Prompt tokens of answers in which the engine reported the prompt's cached tokens, by policy.",
            "policy",
        ),
        lambda s: s.reported_prompt_tokens,
    ),
    (
        counter(
            "kvgate_policy_reported_cached_tokens_total",
            "Cached prompt tokens that the engine reported in answers, by policy.",
            "policy",
        ),
        lambda s: s.reported_cached_tokens,
    ),
    (
        counter(
            "kvgate_policy_predicted_ttft_seconds_total",
            "Predicted time to first token in seconds, added up over answers, by policy.",
            "policy",
        ),
        lambda s: s.promises.predicted_s,
    ),
    (
        counter(
            "kvgate_policy_ttft_error_seconds_total",
            "Absolute differences between predicted and measured time to first token in seconds, added up "
            "over answers, by policy.",
            "policy",
        ),
        lambda s: s.promises.same_error_s,
    ),
)

_COMPARISONS: tuple[tuple[MetricSpec, Callable[[ShadowComparison], float]], ...] = (
    (
        counter("kvgate_shadow_decisions_total", "Decisions repeated with the shadow policy.", "policy"),
        lambda c: c.num_compared,
    ),
    (
        counter(
            "kvgate_shadow_agreements_total",
            "Decisions for which the shadow policy chose the same worker as the active policy.",
            "policy",
        ),
        lambda c: c.num_agreed,
    ),
    (
        counter(
            "kvgate_shadow_prompt_tokens_total",
            "Prompt tokens of decisions repeated with the shadow policy.",
            "policy",
        ),
        lambda c: c.prompt_tokens,
    ),
    (
        counter(
            "kvgate_shadow_overlap_tokens_total",
            "Prompt tokens cached on the worker that the shadow policy chose.",
            "policy",
        ),
        lambda c: c.overlap_tokens,
    ),
    (
        counter(
            "kvgate_shadow_active_overlap_tokens_total",
            "Prompt tokens cached on the worker that the active policy chose.",
            "policy",
        ),
        lambda c: c.active_overlap_tokens,
    ),
    (
        counter(
            "kvgate_shadow_predicted_ttft_seconds_total",
            "Time to first token in seconds that the shadow policy predicted, added up over answers.",
            "policy",
        ),
        lambda c: c.promises.predicted_s,
    ),
    (
        counter(
            "kvgate_shadow_measured_ttft_seconds_total",
            "Measured time to first token in seconds of answers with a prediction of the shadow policy, "
            "added up.",
            "policy",
        ),
        lambda c: c.promises.measured_s,
    ),
    (
        counter("kvgate_shadow_errors_total", "Decisions at which the shadow policy failed.", "policy"),
        lambda c: c.faults.total(),
    ),
)

METRICS = (*(spec for spec, _ in _SCORES), TTFT, *(spec for spec, _ in _COMPARISONS), DROPPED)


class ExperimentsCollector(Collector):
    def __init__(self, experiments: PolicyExperiments) -> None:
        self._experiments = experiments

    def collect(self) -> Iterator[Metric]:
        experiments = self._experiments
        if not experiments.is_on:
            return
        for spec, read in _SCORES:
            yield spec.family((policy, read(score)) for policy, score in experiments.scores.items())
        yield TTFT.histograms((policy, score.ttft_s) for policy, score in experiments.scores.items())
        for spec, look in _COMPARISONS:
            yield spec.family((policy, look(each)) for policy, each in experiments.comparisons.items())
        yield DROPPED.single(experiments.num_dropped)
