"""Pickers: how a composition picks one of the scores."""

import random
from collections.abc import Sequence


class Max:
    """Picks the best score; a random one among equals."""

    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        most = max(scores)
        best = [i for i, score in enumerate(scores) if score == most]
        return best[0] if len(best) == 1 else rng.choice(best)


class Weighted:
    """Picks an index with a probability proportional to its score: gateways that see one another's load
    late do not all choose the same worker."""

    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        if not any(scores):
            return rng.randrange(len(scores))
        return rng.choices(range(len(scores)), scores)[0]


class BestOfTwo:
    """Picks the better of two random scores."""

    def pick(self, scores: Sequence[float], rng: random.Random) -> int:
        if len(scores) == 1:
            return 0
        one, other = rng.sample(range(len(scores)), 2)
        return one if scores[one] >= scores[other] else other
