"""Live token parity: samples decided prompts, and compares the engine's counts and stored blocks with ours.

    decided ─► sample ─► answered ─► settle ─► alarm raised or cleared: log, `on_mismatch`

The state of one worker is its `TokenCheck` (`live_check.py`), which `verification.verifier` keeps.
"""

import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decided, Decision, Prompt
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.worker import WorkerId
from gateway.index.base import Index
from gateway.parity.live_check import (
    MAX_TOKENS,
    CheckResults,
    TokenCheck,
    TokenDifference,
    TokenSample,
    compare,
)
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.verify")

SAMPLE: Final = 16
"""Sampling interval: one in so many prompts is looked for in the events of a worker that is no longer new."""


class LiveParity:
    """Compares the tokens of live traffic. `clock` is monotonic seconds; `on_mismatch` is called when a
    worker's prompt tokens begin or cease to differ from ours."""

    def __init__(
        self,
        fleet: Fleet,
        index: Index,
        clock: Callable[[], float],
        on_mismatch: Callable[[WorkerId, bool], None],
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._clock = clock
        self._log = RateLimitedLog(log, clock=clock)
        self._on_mismatch = on_mismatch

    def decided(self, check: TokenCheck, decided: Decided, num_removed: int) -> None:
        """Sample a prompt of known tokens, if one is due."""
        blocks = decided.blocks
        num = check.num_decided = check.num_decided + 1
        if check.has_room(num) and (not num % SAMPLE or check.wants_samples) and blocks and blocks[0]:
            self._sample(check, decided.decision, decided.prompt, blocks[0], num_removed)

    def answered(self, check: TokenCheck, decision: Decision, num_engines: int) -> None:
        """Compare the engine's count of a prompt's tokens, 0 if unknown, with ours."""
        if num_engines == decision.num_tokens and not check.counts.recent:
            check.counts.num += 1  # as nearly always
        elif num_engines:
            self._count(check, decision, num_engines)
        if decision.id in check.samples:
            check.ended(decision.id, num_engines, self._clock())
        if check.due_s < inf:
            self.settle(check)

    def settle(self, check: TokenCheck) -> None:
        """Compare the samples that are due with the blocks that the engine stored."""
        now = self._clock()
        may_be_late = check.looks(now)
        if now < check.due_s:
            return
        member = self._fleet.get(check.worker.id)
        for sample in check.due(now):
            if member is not None and member.stream is StreamState.EXACT:
                is_sure, difference = compare(sample, check.worker.id, self._index)
                if difference is not None and (may_be_late or sample.suspected is not None):
                    difference = check.confirmed(sample, difference, now)
                    is_sure = difference is not None
                if is_sure:
                    self._checked(check, check.stored, difference)

    def dropped(self, check: TokenCheck) -> None:
        """End the alarm of a worker that has left or restarted."""
        if check.is_raised:
            self._on_mismatch(check.worker.id, False)

    def _count(self, check: TokenCheck, decision: Decision, num_engines: int) -> None:
        ours, difference = decision.num_tokens, None
        if num_engines != ours:
            difference = TokenDifference(decision.id, decision.model, ours, num_engines)
        self._checked(check, check.counts, difference)

    def _sample(
        self,
        check: TokenCheck,
        decision: Decision,
        prompt: Prompt,
        blocks: Sequence[BlockHash],
        num_removed: int,
    ) -> None:
        """Look for this prompt's blocks among those that the worker will store, if some are not there yet."""
        size = decision.worker.block_size
        if not size or decision.confirmed_tokens >= size * len(blocks):
            return
        check.samples[decision.id] = TokenSample(
            decision=decision.id,
            model=decision.model,
            tokens=prompt.tokens[0][:MAX_TOKENS],
            blocks=blocks[: MAX_TOKENS // size],
            block_size=size,
            root=check.root,
            num_removed=num_removed,
            num_ours=decision.num_tokens,
            num_decided=check.num_decided,
        )

    def _checked(self, check: TokenCheck, checks: CheckResults, difference: TokenDifference | None) -> None:
        was_raised = check.is_raised
        checks.add(differs=difference is not None)
        if difference is not None:
            check.differed(difference)
        if check.is_raised is not was_raised:
            self._on_mismatch(check.worker.id, not was_raised)
        if check.is_raised and not was_raised:
            self._log.warning(
                "worker %s: prompt tokens differ from kvgate's (another tokenizer or chat template); "
                "its cached prefixes are not found; see `kvgate check` and /admin/verify",
                check.worker.id,
            )
        elif was_raised and not check.is_raised:
            self._log.info("worker %s: prompt tokens match kvgate's again", check.worker.id)
