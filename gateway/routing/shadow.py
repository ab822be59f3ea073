"""Shadow comparison: another policy's choice among the same candidates, and its prediction."""

import random
from collections import OrderedDict
from typing import Any

from gateway.core.decision import Decision
from gateway.policies.base import Policy
from gateway.policies.framework.guard import PolicyFaults
from gateway.routing.policy_score import TtftPredictions

MAX_OPEN = 1 << 14
"""Requests in flight, some 200 bytes each; those without a reported end stay until others replace them."""


class ShadowComparison:
    """A shadow policy compared with the active one; `policy` may be replaced by another one of its name."""

    def __init__(self, policy: Policy, faults: PolicyFaults) -> None:
        self.policy = policy
        self.faults = faults
        self.num_compared = self.num_agreed = 0
        self.overlap_tokens = self.active_overlap_tokens = self.prompt_tokens = 0
        self.promises = TtftPredictions()
        self._open: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def decided(self, decision: Decision, rng: random.Random) -> None:
        """Repeat the decision with the shadow policy; a failure is not compared."""
        assert decision.query is not None, "what the router decides has one"
        num_faults = self.faults.total()
        choice = self.policy.choose(decision.query, decision.candidates, rng)
        if self.faults.total() > num_faults:
            return
        chosen = decision.candidates[choice.index]
        is_same = chosen.worker is decision.worker
        self.num_compared += 1
        self.num_agreed += is_same
        self.prompt_tokens += decision.num_tokens
        self.overlap_tokens += chosen.overlap_tokens
        self.active_overlap_tokens += decision.overlap_tokens
        if choice.ttft_s is not None:
            self._open[decision.id] = choice.ttft_s, is_same
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)

    def ended(self, decision: Decision, ttft_s: float | None) -> None:
        promised = self._open.pop(decision.id, None)
        if promised and ttft_s is not None:
            self.promises.add(promised[0], ttft_s, is_same=promised[1])

    def describe(self) -> dict[str, Any]:
        num = self.num_compared
        return {
            "compared": num,
            "agreed": self.num_agreed,
            "agreement_share": round(self.num_agreed / num, 4) if num else None,
            "compared_prompt_tokens": self.prompt_tokens,
            "shadow_overlap_tokens": self.overlap_tokens,
            "active_overlap_tokens": self.active_overlap_tokens,
            **self.promises.describe(),
            **{cause: num for (_, cause), num in self.faults.items()},
        }
