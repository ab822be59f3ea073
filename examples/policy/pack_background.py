"""A policy: interactive requests go where they begin soonest, background ones where work is already done.

A background request has a priority below 0, as a tenant or the priority header gives it. It fills the busiest
worker that has room, so that the others stay idle for the requests that people wait for.

    kvgate serve --policy-file pack_background.py ...
    kvgate policy test pack_background.py
"""

from collections.abc import Sequence
from random import Random

from kvgate import Candidate, Choice, Query, pick_lowest

ROOM = 0.8
"""Share of a worker's cache above which it takes no more background work."""


class PackBackground:
    name = "pack_background"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: Random) -> Choice:
        # The tokens that are computed before the first one of this answer: what waits there, and the part of
        # its own prompt that is not cached. `kvgate why` shows these costs with the decision.
        ahead = [float(each.booked_tokens + each.uncached_tokens) for each in candidates]
        if query.priority >= 0:
            return Choice(pick_lowest(ahead, rng), "begins soonest", tuple(ahead))
        has_room = [each.kv_usage < ROOM and not each.num_waiting for each in candidates]
        if not any(has_room):
            return Choice(pick_lowest(ahead, rng), "background, no worker has room", tuple(ahead))
        # The most booked work is the lowest cost; equal workers are drawn by chance.
        costs = [
            -float(each.booked_tokens) if room else float("inf")
            for each, room in zip(candidates, has_room, strict=True)
        ]
        return Choice(pick_lowest(costs, rng), "background, packed", tuple(costs))
