"""How one of the scores is picked."""

import random
from collections.abc import Sequence


class Max:
    """The best; among equals by chance."""

    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        most = max(scores)
        best = [i for i, score in enumerate(scores) if score == most]
        return best[0] if len(best) == 1 else rng.choice(best)


class Weighted:
    """Each as often as its score says: gateways that know each other's load late do not run to the same
    worker."""

    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        if not any(scores):
            return rng.randrange(len(scores))
        return rng.choices(range(len(scores)), scores)[0]


class BestOfTwo:
    """Of two taken by chance the better one."""

    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        if len(scores) == 1:
            return 0
        one, other = rng.sample(range(len(scores)), 2)
        return one if scores[one] >= scores[other] else other
