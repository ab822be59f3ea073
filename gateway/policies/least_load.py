"""The worker with the least work ahead: booked prompt tokens first, then requests in flight."""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.costs.token_work import work_ahead
from gateway.policies.base import Pull, pick_lowest


class LeastLoad:
    name = "least_load"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        costs = [work_ahead(candidate) for candidate in candidates]
        return Choice(pick_lowest(costs, rng), "least work ahead", tuple(costs))


class LoadScorer:
    """Scores 1 for a worker without load, 0 for the one with the most."""

    pull: Pull = "spread"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        costs = [work_ahead(candidate) for candidate in candidates]
        most = max(costs)
        return [1.0 - cost / most for cost in costs] if most else [1.0] * len(costs)
