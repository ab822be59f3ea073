"""Outcomes of requests that may be disaggregated: counters, transfer speed, and pairs that make different
prompts, which are banned."""

import logging
from collections import Counter
from typing import NamedTuple

from gateway.config import Config
from gateway.core.decision import Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.costs.transfer_speed import TransferSpeed
from gateway.observability.metrics import TTFT_BOUNDS_S, Histogram
from gateway.policies.disaggregation import DisaggregationPolicy, modes_of
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.proxy")

DIRECT, SPLIT = "direct", "prefill_decode"


class PinnedPrompt(NamedTuple):
    """A prompt kept at its prefill worker for a transfer; 0 blocks where the block size is unknown."""

    worker: WorkerId
    num_tokens: int
    num_blocks: int


class DisaggregationStats:
    """Counters of one gateway. `pinned` has prompts that were handed on and not yet fetched, by decision.
    `ttft_s` is by plan; `prefill_s` and `transfer_s` (until the first token behind it) are of disaggregated
    requests."""

    def __init__(self, policy: DisaggregationPolicy) -> None:
        self.policy = policy
        self.plans: Counter[tuple[str, str]] = Counter()  # plan, reason
        self.failures: Counter[str] = Counter()
        self.ttft_s = {DIRECT: Histogram(TTFT_BOUNDS_S), SPLIT: Histogram(TTFT_BOUNDS_S)}
        self.prefill_s = Histogram(TTFT_BOUNDS_S)
        self.transfer_s = Histogram(TTFT_BOUNDS_S)
        self.pinned: dict[str, PinnedPrompt] = {}
        self.moved_tokens = 0
        self.num_mismatches = 0
        self._log = RateLimitedLog(log)
        self._counts_otherwise: set[WorkerId] = set()
        """Decode workers that counted other tokens of their last prompt than the gateway."""

    def __repr__(self) -> str:
        return f"DisaggregationStats({dict(self.plans)}, failures={dict(self.failures)})"

    def decided(self, decision: Decision) -> None:
        if decision.split:
            self.plans[_plan(decision), decision.split.reason] += 1

    def failed(self, cause: str) -> None:
        self.failures[cause] += 1

    def prefilled(self, seconds: float) -> None:
        self.prefill_s.observe(seconds)

    def pin(self, decision: Decision, prefilled_tokens: int | None) -> None:
        """The decode worker gets the transfer parameters; `unpin` follows, however the request ends."""
        prefill, num_tokens = decision.prefill, prefilled_tokens or decision.num_tokens
        if prefill is not None:
            num_blocks = -(-num_tokens // prefill.block_size) if prefill.block_size else 0
            self.pinned[decision.id] = PinnedPrompt(prefill.id, num_tokens, num_blocks)

    def unpin(self, decision: Decision) -> None:
        """The prompt was fetched, or will not be; a second call does nothing."""
        self.pinned.pop(decision.id, None)

    def transferred(self, decision: Decision, seconds: float, ahead_s: float) -> None:
        self.transfer_s.observe(seconds)
        self.moved_tokens += decision.uncached_tokens
        self.policy.transfer.transferred(decision.uncached_tokens, seconds, ahead_s)

    def began(self, decision: Decision, ttft_s: float) -> None:
        self.ttft_s[_plan(decision)].observe(ttft_s)

    def agree(self, decision: Decision, prefilled_tokens: int | None) -> bool:
        """True if the decode worker may fetch the prompt: the prefill worker counted as many tokens as the
        gateway. False is logged, and bans the pair: some engines do not survive a difference."""
        prefill, ours = decision.prefill, _tokens_made(decision)
        if prefill is None or prefilled_tokens is None or not ours or prefilled_tokens == ours:
            return True
        if decision.worker.id in self._counts_otherwise:
            return True
        self.failed("mismatch")
        self._differ(prefill.id, decision.worker.id, prefilled_tokens, ours)
        return False

    def compare(self, decision: Decision, prefilled_tokens: int | None, decoded_tokens: int) -> None:
        """Compare the prompt tokens of both legs. Where they differ, the answer was made from the cache of
        another prompt, which nothing else would notice."""
        prefill = decision.prefill
        if prefill is None or prefilled_tokens is None or prefilled_tokens == decoded_tokens:
            return
        self._differ(prefill.id, decision.worker.id, prefilled_tokens, decoded_tokens)

    def acquit(self, prefill: WorkerId, decision: Decision, num_tokens: int) -> None:
        """Allow a pair again: the decode worker alone counted as many tokens as the prefill worker, so that
        the gateway's own count is the different one."""
        if self.policy.acquit(prefill, decision.worker.id):
            self._log.warning(
                "workers %s and %s: prompt tokens agree (%d), used as a pair again; the gateway counts %d: "
                "check that --tokenizer is the one of these engines",
                prefill, decision.worker.id, num_tokens, decision.num_tokens,
            )  # fmt: skip

    def answered(self, decision: Decision, usage: Usage) -> None:
        """Note whether the worker counts prompt tokens as the gateway does, by its latest answer."""
        ours = _tokens_made(decision)
        if ours and usage.prompt_tokens:
            if usage.prompt_tokens == ours:
                self._counts_otherwise.discard(decision.worker.id)
            else:
                self._counts_otherwise.add(decision.worker.id)

    def _differ(self, prefill: WorkerId, decode: WorkerId, one: int, other: int) -> None:
        self.num_mismatches += 1
        if self.policy.ban(prefill, decode, f"they counted {one} and {other} tokens in the same prompt"):
            self._log.error(
                "workers %s and %s: prompt tokens differ (%d and %d); no longer used as a pair; compare "
                "their models, templates and versions",
                prefill, decode, one, other,
            )  # fmt: skip

    def drop_worker(self, worker: WorkerId) -> None:
        """Forget a worker: it will be another process when it comes back."""
        self.policy.allow(worker)
        self._counts_otherwise.discard(worker)


def disaggregation_stats_of(config: Config) -> DisaggregationStats:
    """Return the statistics for a configuration. Raises ConfigError."""
    return DisaggregationStats(DisaggregationPolicy(TransferSpeed(), modes_of(config.disaggregation.mode)))


def _tokens_made(decision: Decision) -> int:
    """All tokens of the prompt; 0 where the gateway does not know them."""
    return decision.num_tokens if decision.prompt_from != BEFORE_MEDIA else 0


def _plan(decision: Decision) -> str:
    return SPLIT if decision.prefill else DIRECT
