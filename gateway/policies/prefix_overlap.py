"""The worker that would begin to answer after the least work, in tokens:

    uncached tokens of this prompt there + work ahead of it there

so a holder of the prefix wins until it is busier than recomputing the prefix elsewhere would cost. What it
holds in slower media than the GPU must be loaded first: a part of it counts as if it were computed.
"""

import random
from collections.abc import Mapping, Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.core.kv_events import SHARED
from gateway.core.ledger import REQUEST_TOKENS
from gateway.policies.base import Pull, pick_lowest

SLOWEST = 0.5

WORTH: Mapping[str, float] = {"CPU": 0.8, "DISK": 0.5, "STORAGE": 0.5}
"""What a block there saves of computing it, where one on the GPU saves all. Rough, and an option for that: it
depends on model, bus and disk; what matters is the order."""


class PrefixOverlap:
    """`worth` by medium; of a shared tier (`STORAGE@pool`) by its whole name, else by that before the @."""

    name = "prefix_overlap"

    def __init__(self, worth: Mapping[str, float] = WORTH) -> None:
        self.worth = worth

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        costs = [candidate.uncached_tokens + work_ahead(candidate) for candidate in candidates]
        for i, candidate in enumerate(candidates):
            if candidate.offloaded:
                costs[i] += to_load(candidate.offloaded, self.worth)
        index = pick_lowest(costs, rng)
        return Choice(index, _reason(candidates, index), tuple(costs))


def to_load(offloaded: Mapping[tuple[str, ...], int], worth: Mapping[str, float]) -> float:
    """What it takes to fetch them, as tokens to compute."""
    return sum(
        [
            tokens * (1 - max([_worth_of(medium, worth) for medium in media]))
            for media, tokens in offloaded.items()
        ]
    )


def _worth_of(medium: str, worth: Mapping[str, float]) -> float:
    """One that nobody has named is taken for a slow one."""
    return worth.get(medium, worth.get(medium.partition(SHARED)[0], SLOWEST))


class OverlapScorer:
    """The part of the prompt that it holds."""

    pull: Pull = "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        num_tokens = query.num_tokens
        if not num_tokens:
            return [0.0] * len(candidates)
        return [min(candidate.overlap_tokens / num_tokens, 1.0) for candidate in candidates]


def work_ahead(candidate: Candidate) -> float:
    """Prompt tokens booked there, and what its running requests cost.

    What the engine reports as waiting beyond what we sent (other gateways' requests) counts too.
    """
    num_requests = max(candidate.num_in_flight, candidate.num_waiting)
    return candidate.booked_tokens + REQUEST_TOKENS * num_requests


def _reason(candidates: Sequence[Candidate], index: int) -> str:
    longest = max(candidate.overlap_tokens for candidate in candidates)
    if candidates[index].overlap_tokens < longest:
        return "recomputing here is cheaper than waiting for the holder"
    return "longest cached prefix" if longest else "no cached prefix: least work ahead"
