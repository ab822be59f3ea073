"""Each prompt prefix has a preferred worker, as long as that worker has no more than its share of the load.

The policy needs no KV events: prompts with the same prefix reach the same worker. The key is the hash of the
prompt's first blocks; where the tokens are unknown, the session; without a session, the load decides.
"""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.core.rendezvous import home_of
from gateway.policies.base import Pull
from gateway.policies.least_load import LeastLoad
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
    """Scores 1 for the preferred worker of the prompt's prefix, else 0."""

    pull: Pull = "reuse"
    reads_prefix = True

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return at_home(_key(query), candidates)


def _key(query: Query) -> str | int | None:
    return query.session if query.prefix is None else query.prefix
