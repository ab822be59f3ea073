"""Baseline policies that ignore cache and load: random choice and round robin."""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query


class Random:
    """Random choice among all candidates: the yardstick for every other policy."""

    name = "random"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        return Choice(rng.randrange(len(candidates)), "random")


class RoundRobin:
    """Each worker in turn, per model: what a plain balancer does."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def twin(self) -> "RoundRobin":
        other = RoundRobin()
        other._turns = dict(self._turns)
        return other

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        turn = self._turns.get(query.model, -1) + 1
        self._turns[query.model] = turn
        in_order = sorted(range(len(candidates)), key=lambda i: candidates[i].id)
        return Choice(in_order[turn % len(in_order)], "round robin")
