"""Metrics of cache losses: prompt tokens that were computed, and why."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.cache_loss.attribution import LossCause
from gateway.observability.cache_loss.observer import CacheLoss
from gateway.observability.metric_spec import counter

REASONS = ("unknown_prompt", "behind_media", "dropped", "several_prompts", "prompt_logprobs")

COMPUTED = counter(
    "kvgate_computed_prompt_tokens_total",
    "Uncached prompt tokens of answers in which the engine reported the prompt's cached tokens: the sum of "
    "recomputed, new and unattributed prompt tokens.",
)
RECOMPUTED = counter(
    "kvgate_recomputed_prompt_tokens_total",
    "Prompt tokens computed again although some worker had cached the tokens before, by cause.",
    "cause",
)
NEW = counter("kvgate_new_prompt_tokens_total", "Prompt tokens computed that no worker had cached before.")
UNATTRIBUTED = counter(
    "kvgate_unattributed_prompt_tokens_total",
    "Prompt tokens computed and not attributed to a cause, by reason.",
    "reason",
)
AVOIDED = counter(
    "kvgate_avoided_queue_tokens_total",
    "Prompt tokens of work ahead that requests avoided on a less loaded worker than the one with the longest "
    "cached prefix.",
)

METRICS = (COMPUTED, RECOMPUTED, NEW, UNATTRIBUTED, AVOIDED)


class LossCollector(Collector):
    def __init__(self, losses: CacheLoss) -> None:
        self._losses = losses

    def collect(self) -> Iterator[Metric]:
        losses = self._losses
        yield COMPUTED.single(losses.num_computed_tokens)
        yield RECOMPUTED.family((cause.value, losses.recomputed[cause]) for cause in LossCause)
        yield NEW.single(losses.num_new_tokens)
        yield UNATTRIBUTED.family((dict.fromkeys(REASONS, 0) | losses.unexplained).items())
        yield AVOIDED.single(losses.num_avoided_tokens)
