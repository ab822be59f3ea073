"""A policy chooses one of the candidates. It gets plain frozen values and keeps no handle on anything.

It is written whole, or composed of parts (`policies/framework/composed_policy.py`):

    filters: who may have it ─► scorers: how good is each, by weight ─► picker: one of the scores
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
        """The index of the chosen candidate; `candidates` is never empty, its order means nothing."""


class Filter(Protocol):
    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Those of them that are eligible. Where none is, the filter is passed over: somebody must answer."""


class Scorer(Protocol):
    """`pull` says where to: "reuse" to workers that hold something, "spread" to those with less to do. What
    only pulls towards reuse herds."""

    pull: Pull

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        """From 0 to 1 for each of them, in their order; 1 is best."""


class Picker(Protocol):
    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        """The index of one of the scores, which are from 0 to 1; there is at least one."""


@runtime_checkable
class Explains(Protocol):
    """A policy that can say what its cost of a candidate is made of."""

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """For each of them by name what sums up to its term, in seconds."""


@runtime_checkable
class Remembers(Protocol):
    """A policy or filter whose choices change with those it made before."""

    def twin(self) -> "Policy | Filter":
        """Another one that remembers the same: asked what it would do, it leaves this one as it is."""


def reads_prefix(part: object) -> bool:
    """True for a policy, filter or scorer that declares that it reads `query.prefix`."""
    return bool(getattr(part, "reads_prefix", False))


def pick_lowest(costs: Sequence[float], rng: random.Random) -> int:
    """The index of the lowest cost; ties are broken by chance, so that equals share the load."""
    lowest = min(costs)
    best = [i for i, cost in enumerate(costs) if cost == lowest]
    return best[0] if len(best) == 1 else rng.choice(best)
