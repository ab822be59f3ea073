"""NVIDIA Dynamo's published cost, to measure against; as of ai-dynamo's documentation of its KV router.

    cost = overlap weight · (prompt tokens to compute there, booked ones too) ÷ block size
           + blocks in use there, with this request's

with its default weight, and temperature 0: the lowest wins. It counts the blocks in use by its own routing, a
shared one once, until the response's end: so this one observes its router too.
"""

import random
from collections import Counter
from collections.abc import Sequence

from gateway.core.blocks import BlockHash
from gateway.core.decision import Candidate, Choice, Decided, Decision, Query
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.policies.base import pick_lowest

OVERLAP_WEIGHT = 1.0


class DynamoCost:
    name = "dynamo"

    def __init__(self) -> None:
        self._in_use: dict[WorkerId, Counter[BlockHash]] = {}
        self._open: dict[str, tuple[WorkerId, Sequence[BlockHash]]] = {}

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        costs = [self._cost(query, candidate) for candidate in candidates]
        return Choice(pick_lowest(costs, rng), "lowest cost", tuple(costs))

    def decided(self, decided: Decided) -> None:
        decision, blocks = decided.decision, decided.blocks
        used = [block for each in blocks for block in each]
        self._in_use.setdefault(decision.worker.id, Counter()).update(used)
        self._open[decision.id] = decision.worker.id, used

    def answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        worker, used = self._open.pop(decision.id)
        in_use = self._in_use.get(worker, Counter())
        for block in used:
            in_use[block] -= 1
            if in_use[block] <= 0:
                del in_use[block]

    def _cost(self, query: Query, candidate: Candidate) -> float:
        size = candidate.worker.block_size or 1
        if not candidate.num_in_flight:  # also entries lost with a worker that restarted
            self._in_use.pop(candidate.id, None)
        in_use = len(self._in_use.get(candidate.id, ()))
        to_compute = candidate.booked_tokens + candidate.uncached_tokens
        return (OVERLAP_WEIGHT * to_compute + query.num_tokens) / size + in_use
