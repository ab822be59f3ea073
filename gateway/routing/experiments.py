"""A/B tests and shadow policies: decisions are queued on the request path and compared between requests.

    decided ─► queue ─► each shadow chooses too ─► its prediction is kept
    ended   ─► score of the policy that chose
          └─► queue ─► predictions are compared with measured times

The queue is bounded, and so is the time: work above a twentieth of a core is dropped and counted. Without
shadows nothing is queued, and without either there is no observer.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.core.decision import Decided, Decision
from gateway.core.outcome import Outcome
from gateway.policies.base import Policy
from gateway.policies.framework.guard import PolicyFaults
from gateway.routing.policy_score import PolicyScore
from gateway.routing.shadow import ShadowComparison

MAX_QUEUED = 1000
PORTION_S = 0.001
PAUSE_S = 0.02


class Shadow(NamedTuple):
    """A shadow policy; `faults` are counted apart from those of policies in use."""

    policy: Policy
    faults: PolicyFaults


class PolicyExperiments:
    """Observer of decisions and their outcomes. `shares` are those of the policies in use."""

    def __init__(
        self, shares: Mapping[str, float], shadows: Mapping[str, Shadow], rng: random.Random | None = None
    ) -> None:
        self.shares = shares
        self.scores = {name: PolicyScore() for name in shares}
        self.comparisons = {name: ShadowComparison(*shadow) for name, shadow in shadows.items()}
        self.num_dropped = 0
        self._rng = rng or random.Random()
        self._queue: deque[Decision | tuple[Decision, float | None]] = deque()

    def __repr__(self) -> str:
        names = f"{list(self.scores)}, shadow={list(self.comparisons)}"
        return f"PolicyExperiments({names}, {len(self._queue)} queued)"

    @property
    def is_on(self) -> bool:
        """True where there is something to compare; a single policy is in the other metrics."""
        return len(self.scores) > 1 or bool(self.comparisons)

    def replace(self, shares: Mapping[str, float], shadows: Mapping[str, Shadow]) -> None:
        """Replace the policies; counts of the same names stay, so that metrics do not go down."""
        self.shares = shares
        self.scores = {name: self.scores.get(name) or PolicyScore() for name in shares}
        for name, (policy, faults) in shadows.items():
            if known := self.comparisons.get(name):
                faults.update(known.faults)
                known.policy, known.faults = policy, faults
            else:
                self.comparisons[name] = ShadowComparison(policy, faults)

    # on the request path -----------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        """Queue a first attempt for the shadows; later attempts have fewer candidates."""
        decision = decided.decision
        if decision.attempt == 1 and self.comparisons:
            self._put(decision)

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        if score := self.scores.get(decision.policy):
            score.ended(decision, outcome)
        if decision.attempt == 1 and self.comparisons and len(self._queue) < 2 * MAX_QUEUED:
            self._queue.append((decision, outcome.ttft_s))

    def _put(self, decision: Decision) -> None:
        if len(self._queue) < MAX_QUEUED:
            self._queue.append(decision)
        else:
            self.num_dropped += 1

    # between requests --------------------------------------------------------------------------

    def step(self) -> bool:
        """Process one queued item; False if there was none."""
        if not self._queue:
            return False
        item = self._queue.popleft()
        for comparison in self.comparisons.values():
            if isinstance(item, Decision):
                comparison.decided(item, self._rng)
            else:
                comparison.ended(*item)
        return True

    def describe(self) -> dict[str, Any]:
        """Return scores and comparisons as plain JSON values."""
        if not self.is_on:
            return {}
        return {
            "scores": [
                {"name": name, "share": round(self.shares[name], 4), **score.describe()}
                for name, score in self.scores.items()
            ],
            "shadow": [{"name": name, **each.describe()} for name, each in self.comparisons.items()],
            "dropped_decisions": self.num_dropped,
        }


async def keep_compared(experiments: PolicyExperiments) -> None:
    """Process the queue in short portions with pauses, since requests come first. Ends without shadows."""
    while experiments.comparisons:
        await asyncio.sleep(PAUSE_S)
        end = time.perf_counter() + PORTION_S
        while experiments.step() and time.perf_counter() < end:
            pass
