"""A policy chooses one of the candidates. It gets plain frozen values and keeps no handle on anything."""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from gateway.core.decision import Candidate, Choice, Query


class Policy(Protocol):
    name: str

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        """The index of the chosen candidate; `candidates` is never empty, its order means nothing."""


@runtime_checkable
class Explains(Protocol):
    """A policy that can say what its cost of a candidate is made of."""

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """For each of them by name what sums up to its term, in seconds."""


def pick_lowest(costs: Sequence[float], rng: random.Random) -> int:
    """The index of the lowest cost; ties are broken by chance, so that equals share the load."""
    lowest = min(costs)
    best = [i for i, cost in enumerate(costs) if cost == lowest]
    return best[0] if len(best) == 1 else rng.choice(best)
