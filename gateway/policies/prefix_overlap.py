"""The worker that would begin to answer after the least work, in tokens:

    uncached tokens of this prompt there + work ahead of it there

so a holder of the prefix wins until it is busier than recomputing the prefix elsewhere would cost.
"""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import pick_lowest

REQUEST_TOKENS = 64
"""What one more request costs a worker while it decodes, as prefill tokens: a decode step of one
sequence takes about as long as prefilling some tens of tokens, and a request does many. It breaks
the tie between an idle worker and one that only decodes."""


class PrefixOverlap:
    name = "prefix_overlap"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        costs = [candidate.uncached_tokens + work_ahead(candidate) for candidate in candidates]
        index = pick_lowest(costs, rng)
        return Choice(index, _reason(candidates, index), tuple(costs))


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
    return "longest prefix held" if longest else "no holder: least work ahead"
