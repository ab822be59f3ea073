"""Power of two choices: the less loaded of two random workers. The spread is nearly as even as over all, and
gateways that see one another's load late do not all choose the same worker."""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.costs.token_work import work_ahead
from gateway.policies.base import pick_lowest


class PowerOfTwo:
    name = "power_of_two"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        if len(candidates) == 1:
            return Choice(0, "only candidate")
        two = rng.sample(range(len(candidates)), 2)
        best = two[pick_lowest([work_ahead(candidates[i]) for i in two], rng)]
        return Choice(best, "less work ahead of two random candidates")
