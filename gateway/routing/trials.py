"""Scores of the policies in use and comparisons with others: told on the way of requests, worked out between.

    decided ─► queue ─► each shadow chooses too ─► its promise is kept
    ended   ─► score of who chose
          └─► queue ─► promises are held beside what came

What waits is bounded, and so is the time: of more than a twentieth of a core's worth a part is dropped and
counted. Without shadows nothing is queued, and without either nobody is told.
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
from gateway.policies.framework.guard import Faults
from gateway.routing.policy_score import Score
from gateway.routing.shadow import Comparison

MAX_QUEUED = 1000
PORTION_S = 0.001
PAUSE_S = 0.02


class Shadow(NamedTuple):
    """A policy that only looks on; `faults` are counted apart from those of policies in use."""

    policy: Policy
    faults: Faults


class Trials:
    """Observer of decisions and of their ends. `shares` are those of the policies in use."""

    def __init__(
        self, shares: Mapping[str, float], shadows: Mapping[str, Shadow], rng: random.Random | None = None
    ) -> None:
        self.shares = shares
        self.scores = {name: Score() for name in shares}
        self.comparisons = {name: Comparison(*shadow) for name, shadow in shadows.items()}
        self.num_dropped = 0
        self._rng = rng or random.Random()
        self._queue: deque[Decision | tuple[Decision, float | None]] = deque()

    def __repr__(self) -> str:
        return f"Trials({list(self.scores)}, shadow={list(self.comparisons)}, {len(self._queue)} queued)"

    @property
    def is_on(self) -> bool:
        """Whether there is something to compare; one policy alone is in the other metrics."""
        return len(self.scores) > 1 or bool(self.comparisons)

    def replace(self, shares: Mapping[str, float], shadows: Mapping[str, Shadow]) -> None:
        """Read anew: what was counted of the same names stays, and metrics do not go down."""
        self.shares = shares
        self.scores = {name: self.scores.get(name) or Score() for name in shares}
        for name, (policy, faults) in shadows.items():
            if known := self.comparisons.get(name):
                faults.update(known.faults)
                known.policy, known.faults = policy, faults
            else:
                self.comparisons[name] = Comparison(policy, faults)

    # on the way of requests --------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        """First attempts only: others have fewer candidates."""
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
        """Work off one; False if there was none."""
        if not self._queue:
            return False
        told = self._queue.popleft()
        for comparison in self.comparisons.values():
            if isinstance(told, Decision):
                comparison.decided(told, self._rng)
            else:
                comparison.ended(*told)
        return True

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        if not self.is_on:
            return {}
        return {
            "arms": [
                {"name": name, "share": round(self.shares[name], 4), **score.describe()}
                for name, score in self.scores.items()
            ],
            "shadow": [{"name": name, **each.describe()} for name, each in self.comparisons.items()],
            "dropped": self.num_dropped,
        }


async def keep_compared(trials: Trials) -> None:
    """A portion, a pause: whatever comes, requests come first. Ends where nothing is compared."""
    while trials.comparisons:
        await asyncio.sleep(PAUSE_S)
        end = time.perf_counter() + PORTION_S
        while trials.step() and time.perf_counter() < end:
            pass
