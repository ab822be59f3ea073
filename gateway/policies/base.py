"""A policy chooses one of the candidates. It gets plain frozen values and keeps no handle on anything.

A policy is one class, or a composition of parts (`policies/framework/composed_policy.py`):

    filters: eligible candidates ─► scorers: a weighted score of each ─► picker: one of the scores
"""

import random
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from gateway.core.decision import Candidate, Choice, Query

Pull = Literal["reuse", "spread"]


class Policy(Protocol):
    """A policy, filter or scorer that reads `query.prefix` declares `reads_prefix = True`. Without that the
    prefix is None, and the hash of the prompt's beginning is not looked up."""

    name: str

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        """Return the index of the chosen candidate; `candidates` is never empty, its order means nothing."""


class Filter(Protocol):
    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the eligible candidates. Where there are none, the filter is skipped: the request must have
        a worker."""


class Scorer(Protocol):
    """A scorer's `pull` is its direction: "reuse" prefers workers with cached state, "spread" workers with
    less load. A composition that only pulls towards reuse sends everything to one worker."""

    pull: Pull

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        """Return a score from 0 to 1 for each candidate, in their order; 1 is best."""


class Picker(Protocol):
    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        """Return the index of one of the scores, which are from 0 to 1; there is at least one."""


@runtime_checkable
class ExplainingPolicy(Protocol):
    """A policy that can break down its cost of a candidate."""

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Return for each candidate the named parts of its cost, in seconds."""


@runtime_checkable
class StatefulPolicy(Protocol):
    """A policy or filter with state: its choices depend on those that it made before."""

    def twin(self) -> "Policy | Filter":
        """Return a copy with the same state: a trial choice of the copy leaves this one unchanged."""


def reads_prefix(part: object) -> bool:
    """True for a policy, filter or scorer that declares that it reads `query.prefix`."""
    return bool(getattr(part, "reads_prefix", False))


def pick_lowest(costs: Sequence[float], rng: random.Random) -> int:
    """Return the index of the lowest cost; ties are broken at random, so that equals share the load."""
    lowest = min(costs)
    best = [i for i, cost in enumerate(costs) if cost == lowest]
    return best[0] if len(best) == 1 else rng.choice(best)
