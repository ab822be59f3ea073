"""What became of requests that may be split: counted, learnt from, and pairs that do not agree taken out."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.core.decision import Decision
from gateway.core.media import BEFORE_MEDIA
from gateway.core.speeds import Speeds
from gateway.core.sse import Usage
from gateway.core.worker import WorkerId
from gateway.metrics import TTFT_BOUNDS_S, Histogram
from gateway.policies.disaggregation import Disaggregation, modes_of

log = logging.getLogger("kvgate.proxy")

DIRECT, SPLIT = "direct", "prefill_decode"


class Splits:
    """Of one gateway. `ttft_s` by plan; `prefill_s` and `transfer_s` (until the first token behind it) of
    what was split."""

    def __init__(self, policy: Disaggregation) -> None:
        self.policy = policy
        self.speeds: Speeds = policy.speeds
        self.plans: Counter[tuple[str, str]] = Counter()  # plan, reason
        self.failures: Counter[str] = Counter()
        self.ttft_s = {DIRECT: Histogram(TTFT_BOUNDS_S), SPLIT: Histogram(TTFT_BOUNDS_S)}
        self.prefill_s = Histogram(TTFT_BOUNDS_S)
        self.transfer_s = Histogram(TTFT_BOUNDS_S)
        self.moved_tokens = 0
        self.num_mismatches = 0
        self._counts_otherwise: set[WorkerId] = set()
        """Decode workers whose last prompt had another number of tokens than we had made of it."""

    def __repr__(self) -> str:
        return f"Splits({dict(self.plans)}, failures={dict(self.failures)})"

    def decided(self, decision: Decision) -> None:
        if decision.split:
            self.plans[_plan(decision), decision.split.reason] += 1

    def failed(self, cause: str) -> None:
        self.failures[cause] += 1

    def prefilled(self, decision: Decision, seconds: float) -> None:
        split = decision.split
        assert split is not None and split.worker is not None
        self.prefill_s.observe(seconds)
        for candidate in split.candidates:
            if candidate.worker is split.worker:
                num_tokens = candidate.uncached_tokens + candidate.booked_tokens
                self.speeds.prefilled(candidate.id, num_tokens, seconds)

    def transferred(self, decision: Decision, seconds: float) -> None:
        self.transfer_s.observe(seconds)
        self.moved_tokens += decision.uncached_tokens
        self.speeds.transferred(decision.uncached_tokens, seconds)

    def began(self, decision: Decision, ttft_s: float) -> None:
        self.ttft_s[_plan(decision)].observe(ttft_s)

    def agree(self, decision: Decision, prefilled_tokens: int | None) -> bool:
        """Whether the decode worker may be told of what was computed: it will take the prompt for as many
        tokens, if ours are its own. False raises the alarm: some engines do not survive a difference."""
        prefill, ours = decision.prefill, _tokens_made(decision)
        if prefill is None or prefilled_tokens is None or not ours or prefilled_tokens == ours:
            return True
        if decision.worker.id in self._counts_otherwise:
            return True
        self.failed("mismatch")
        self._differ(prefill.id, decision.worker.id, prefilled_tokens, ours)
        return False

    def compare(self, decision: Decision, prefilled_tokens: int | None, decoded_tokens: int) -> None:
        """What both legs took the prompt for. Where that differs the answer was made from another prompt's
        cache: nobody else would notice."""
        prefill = decision.prefill
        if prefill is None or prefilled_tokens is None or prefilled_tokens == decoded_tokens:
            return
        self._differ(prefill.id, decision.worker.id, prefilled_tokens, decoded_tokens)

    def acquit(self, prefill: WorkerId, decision: Decision, num_tokens: int) -> None:
        """The decode worker, asked alone, took the prompt for as many tokens as that prefill worker: ours are
        others."""
        if self.policy.acquit(prefill, decision.worker.id):
            log.warning(
                "workers %s and %s make the same prompts after all (%d tokens), and others than this gateway "
                "(%d): they are a pair again; is --tokenizer theirs?",
                prefill, decision.worker.id, num_tokens, decision.num_tokens,
            )  # fmt: skip

    def answered(self, decision: Decision, usage: Usage) -> None:
        """Whether the worker counts a prompt's tokens as we do, by its latest."""
        ours = _tokens_made(decision)
        if ours and usage.prompt_tokens:
            if usage.prompt_tokens == ours:
                self._counts_otherwise.discard(decision.worker.id)
            else:
                self._counts_otherwise.add(decision.worker.id)

    def _differ(self, prefill: WorkerId, decode: WorkerId, one: int, other: int) -> None:
        self.num_mismatches += 1
        if self.policy.ban(prefill, decode, f"they made {one} and {other} tokens of one prompt"):
            log.error(
                "workers %s and %s make different prompts of one request (%d and %d tokens): they are no "
                "pair any more; compare their model, template and version",
                prefill, decode, one, other,
            )  # fmt: skip

    def drop_worker(self, worker: WorkerId) -> None:
        """It is another process when it comes back."""
        self.speeds.drop(worker)
        self.policy.allow(worker)
        self._counts_otherwise.discard(worker)


def splits_of(config: Config) -> Splits:
    """Raises ConfigError."""
    speeds = Speeds(
        prefill_tokens_per_s=config.prefill_tokens_per_s,
        transfer_tokens_per_s=config.transfer_tokens_per_s,
        transfer_latency_s=config.transfer_latency_s,
    )
    return Splits(Disaggregation(speeds, modes_of(config.disaggregation)))


class SplitsCollector(Collector):
    def __init__(self, splits: Splits) -> None:
        self._splits = splits

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        splits = self._splits
        plans = CounterMetricFamily(
            "kvgate_plans", "Requests that prefill workers could have served", labels=["plan", "reason"]
        )
        for (plan, reason), count in splits.plans.items():
            plans.add_metric([plan, reason], count)
        yield plans
        fallbacks = CounterMetricFamily(
            "kvgate_split_failures", "Split requests whose prefill or transfer failed", labels=["cause"]
        )
        for cause, count in splits.failures.items():
            fallbacks.add_metric([cause], count)
        yield fallbacks
        ttft = HistogramMetricFamily(
            "kvgate_plan_ttft_seconds", "Time to first token of streamed answers by plan", labels=["plan"]
        )
        for plan, histogram in splits.ttft_s.items():
            ttft.add_metric([plan], histogram.buckets(), histogram.sum)
        yield ttft
        for name, text, one in (
            ("prefill_seconds", "Until a prefill worker has answered", splits.prefill_s),
            ("transfer_seconds", "From its answer to the decode worker's first token", splits.transfer_s),
        ):
            family = HistogramMetricFamily(f"kvgate_{name}", text)
            family.add_metric([], one.buckets(), one.sum)
            yield family
        for name, text, value in (
            ("transferred_tokens", "Prompt tokens that went to decode workers", splits.moved_tokens),
            ("leg_mismatches", "Split requests whose legs saw different prompts", splits.num_mismatches),
        ):
            counter = CounterMetricFamily(f"kvgate_{name}", text)
            counter.add_metric([], value)
            yield counter


def _tokens_made(decision: Decision) -> int:
    """All tokens of its prompt, 0 where we do not know them."""
    return decision.num_tokens if decision.prompt_from != BEFORE_MEDIA else 0


def _plan(decision: Decision) -> str:
    return SPLIT if decision.prefill else DIRECT
