"""A policy of others' is asked under guard: whatever it does, there is a choice, and its faults are seen.

    raises, or answers invalidly    that decision goes by least load
    takes longer than its budget    its choice holds: least load would only be later, and a late one may be
                                    the machine's fault. Three times in a row, and the policy rests for a
                                    hundred times as long: it holds the loop for a hundredth of the time

Each fault is counted; only a change is logged.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import Policy, reads_prefix
from gateway.policies.framework.composed_policy import PartError, as_choice, explained, twin_of
from gateway.policies.least_load import LeastLoad

log = logging.getLogger("kvgate.policies")

RAISED, INVALID, LATE, PAUSED = "raised", "invalid", "over_budget", "paused"

MAX_LATE = 3
"""In a row: one or two may be the garbage collector's, or another process's."""
REST = 100
"""Times as long as it took."""
WELL_AFTER = 100
"""Decisions in a row without a fault."""


class PolicyFaults(Counter[tuple[str, str]]):
    """Decisions that went by least load, by policy and cause."""


class PolicyGuard:
    """Wraps a policy: a failure, a wrong result or a late one is replaced by least load. `name` is the
    configured one; `clock` is in seconds and only compared with itself; with `is_shadow` the log says that
    the policy routes nothing."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        budget_s: float,
        faults: PolicyFaults,
        clock: Callable[[], float] = time.perf_counter,
        *,
        is_shadow: bool = False,
    ) -> None:
        self.name = name
        self._is_shadow = is_shadow
        self._policy = policy
        self.reads_prefix = reads_prefix(policy)
        self._budget_s = budget_s
        self._faults = faults
        self._clock = clock
        self._fallback = LeastLoad()
        self._is_watched = False
        self._num_well = self._num_late = 0
        self._rests_until = 0.0
        self.fault: str | None = None

    def __repr__(self) -> str:
        return f"PolicyGuard({self._policy!r}, {self.fault or 'well'})"

    def twin(self) -> "PolicyGuard":
        """Return a guarded copy, with faults of its own."""
        twin = twin_of(self._policy)
        return PolicyGuard(
            self.name, twin, self._budget_s, PolicyFaults(), self._clock, is_shadow=self._is_shadow
        )

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        began = self._clock()
        if began < self._rests_until:
            return self._fall_back(PAUSED, query, candidates, rng)
        cause = fault = ""
        try:
            choice = as_choice(self._policy.choose(query, candidates, rng), len(candidates))
        except PartError as exc:
            cause, fault = INVALID, str(exc)
        except (Exception, SystemExit) as exc:  # noqa: BLE001  it is not ours: what it raises costs no request
            cause, fault = RAISED, where(exc)
        took_s = self._clock() - began
        self._num_late = self._num_late + 1 if took_s > self._budget_s else 0
        if self._num_late >= MAX_LATE:
            self._rests_until = began + took_s * REST
            cause, fault = LATE, self._lateness(took_s)
        if cause:
            self._failed(fault)
            return self._fall_back(cause, query, candidates, rng)
        if self._is_watched and not self._num_late:
            self._was_well()
        return choice

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        return explained(self._policy, query, candidates)

    def _fall_back(
        self, cause: str, query: Query, candidates: Sequence[Candidate], rng: random.Random
    ) -> Choice:
        self._faults[self.name, cause] += 1
        choice = self._fallback.choose(query, candidates, rng)
        return Choice(choice.index, f"least work ahead, since {self.name} failed: {cause}", choice.terms)

    def _failed(self, fault: str) -> None:
        """Logged where it is the first in a while."""
        if self.fault is None and self._is_shadow:
            log.warning("shadow policy %s failed; not compared until it recovers, routing is unaffected: %s",
                        self.name, fault)  # fmt: skip
        elif self.fault is None:
            log.error("policy %s failed; routing by least load until it recovers: %s", self.name, fault)
        self.fault = fault
        self._is_watched, self._num_well = True, 0

    def _lateness(self, took_s: float) -> str:
        num, budget_ms = self._num_late, self._budget_s * 1e3
        return (
            f"{num} decisions in a row took longer than its budget of {budget_ms:g} ms, "
            f"the last {took_s * 1e3:.1f} ms"
        )

    def _was_well(self) -> None:
        self._num_well += 1
        if self._num_well >= WELL_AFTER:
            log.info("%s %s recovered", "shadow policy" if self._is_shadow else "policy", self.name)
            self._is_watched, self.fault = False, None


def where(exc: BaseException, within: str | None = None) -> str:
    """Return an exception with the line that raised it: the last one in the file `within`, or of all."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{Path(exc.filename).name}:{exc.lineno}: {exc.msg}"
    frames = extract_tb(exc.__traceback__)
    known = [frame for frame in frames if within is None or frame.filename == within] or frames
    place = f"{Path(known[-1].filename).name}:{known[-1].lineno}: " if known else ""
    return f"{place}{type(exc).__name__}: {exc}"
