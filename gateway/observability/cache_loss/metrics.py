"""What was computed again and why, as Prometheus sees it."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.observability.cache_loss.attribution import Cause
from gateway.observability.cache_loss.observer import CacheLoss

REASONS = ("unknown_prompt", "behind_media", "dropped", "several_prompts", "prompt_logprobs")


class LossCollector:
    """Together the four are all prompt tokens that were computed for answers that told their cached ones."""

    def __init__(self, losses: CacheLoss) -> None:
        self._losses = losses

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        losses = self._losses
        yield CounterMetricFamily(
            "kvgate_computed_tokens",
            "Prompt tokens computed, of answers that told their cached tokens",
            value=losses.num_computed_tokens,
        )
        causes = {cause.value: losses.recomputed[cause] for cause in Cause}
        yield _counter(
            "recomputed_tokens", "Of those, cached once and computed again, by why", "cause", causes
        )
        yield CounterMetricFamily(
            "kvgate_new_tokens", "Of those, never cached before", value=losses.num_new_tokens
        )
        reasons = dict.fromkeys(REASONS, 0) | losses.unexplained
        yield _counter("unexplained_tokens", "Of those, not looked at, by why", "reason", reasons)
        yield CounterMetricFamily(
            "kvgate_avoided_tokens",
            "What routing away bought: by how much less work was ahead than at the holder",
            value=losses.num_avoided_tokens,
        )


def _counter(name: str, text: str, label: str, rows: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"kvgate_{name}", text, labels=[label])
    for key, value in rows.items():
        family.add_metric([key], value)
    return family
