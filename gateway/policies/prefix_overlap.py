"""Prefix overlap: the worker that would begin to answer after the least work, in tokens:

    uncached tokens of this prompt there + work ahead of it there

The worker with the longest cached prefix wins until its queue costs more than recomputing the prefix
elsewhere. Blocks in slower media than the GPU must be loaded first: a part of them counts as computed.
"""

import random
from collections.abc import Mapping, Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.costs.token_work import WORTH, to_load, work_ahead
from gateway.policies.base import Pull, pick_lowest


class PrefixOverlap:
    """The least work ahead plus uncached tokens; `worth` is by medium: a shared tier (`STORAGE@pool`) is
    found by its whole name, else by the part before the @."""

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


class OverlapScorer:
    """Scores the share of the prompt that the worker has cached."""

    pull: Pull = "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        num_tokens = query.num_tokens
        if not num_tokens:
            return [0.0] * len(candidates)
        return [min(candidate.overlap_tokens / num_tokens, 1.0) for candidate in candidates]


def _reason(candidates: Sequence[Candidate], index: int) -> str:
    longest = max(candidate.overlap_tokens for candidate in candidates)
    if candidates[index].overlap_tokens < longest:
        return "computing the prefix again is cheaper than waiting for its worker"
    return "longest cached prefix" if longest else "no cached prefix: least work ahead"
