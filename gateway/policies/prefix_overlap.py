"""Prefix overlap: the worker that would begin to answer after the least work, in tokens:

    uncached tokens of this prompt there + work ahead of it there

The worker with the longest cached prefix wins until its queue costs more than recomputing the prefix
elsewhere. Blocks in slower media than the GPU must be loaded first: a part of them counts as computed.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.decision import Candidate, Choice, Query
from gateway.core.kv_events import SHARED
from gateway.core.ledger import REQUEST_TOKENS
from gateway.policies.base import Pull, pick_lowest

SLOWEST: Final = 0.5

WORTH: Final[Mapping[str, float]] = {"CPU": 0.8, "DISK": 0.5, "STORAGE": 0.5}
"""The share of a block's computation that a copy in this medium saves (on the GPU: all). A rough default, and
an option, since it depends on model, bus and disk; the order matters most."""


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


def to_load(offloaded: Mapping[tuple[str, ...], int], worth: Mapping[str, float]) -> float:
    """Return the cost of loading offloaded blocks, in tokens to compute."""
    return sum(
        [
            tokens * (1 - max([_worth_of(medium, worth) for medium in media]))
            for media, tokens in offloaded.items()
        ]
    )


def _worth_of(medium: str, worth: Mapping[str, float]) -> float:
    """Return the worth of a medium; an unknown one counts as slow."""
    return worth.get(medium, worth.get(medium.partition(SHARED)[0], SLOWEST))


class OverlapScorer:
    """Scores the share of the prompt that the worker has cached."""

    pull: Pull = "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        num_tokens = query.num_tokens
        if not num_tokens:
            return [0.0] * len(candidates)
        return [min(candidate.overlap_tokens / num_tokens, 1.0) for candidate in candidates]


def work_ahead(candidate: Candidate) -> float:
    """Return the prompt tokens booked at a worker, and the cost of its running requests.

    Requests that the engine reports as waiting, beyond those of this gateway, count too.
    """
    num_requests = max(candidate.num_in_flight, candidate.num_waiting)
    return candidate.booked_tokens + REQUEST_TOKENS * num_requests


def _reason(candidates: Sequence[Candidate], index: int) -> str:
    longest = max(candidate.overlap_tokens for candidate in candidates)
    if candidates[index].overlap_tokens < longest:
        return "computing the prefix again is cheaper than waiting for its worker"
    return "longest cached prefix" if longest else "no cached prefix: least work ahead"
