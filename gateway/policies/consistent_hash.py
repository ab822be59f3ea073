"""Each beginning of a prompt has its worker, as long as that one has no more than its share of the load.

Needs no events: prompts that begin alike meet where they have met before. What counts is the hash of the
prompt's first blocks; where its tokens are not known, its session, and without one the load.
"""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import Pull
from gateway.policies.least_load import LeastLoad
from gateway.policies.rendezvous import home_of
from gateway.policies.session_affinity import at_home


class ConsistentHash:
    name = "consistent_hash"
    reads_prefix = True

    def __init__(self) -> None:
        self._least_load = LeastLoad()

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        key = _key(query)
        if key is None:
            return self._least_load.choose(query, candidates, rng)
        index, is_first = home_of(key, candidates)
        return Choice(
            index,
            "preferred worker for the prefix"
            if is_first
            else "preferred worker for the prefix is over its share",
        )


class ConsistentHashScorer:
    """1 for the worker of the prompt's beginning."""

    pull: Pull = "reuse"
    reads_prefix = True

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return at_home(_key(query), candidates)


def _key(query: Query) -> str | int | None:
    return query.session if query.prefix is None else query.prefix
