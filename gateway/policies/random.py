"""Any worker, by chance: what others are measured against."""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query


class Random:
    name = "random"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        return Choice(rng.randrange(len(candidates)), "by chance")
