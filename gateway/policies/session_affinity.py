"""Each session has a preferred worker, as long as that worker has no more than its share of the load.

A session is named by a header, a cookie or the field `user` of the request (`--session-header`). A request
without one goes to the worker with the least work ahead.
"""

import random
from collections.abc import Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.core.rendezvous import home_of
from gateway.policies.base import Pull
from gateway.policies.least_load import LeastLoad


class SessionAffinity:
    name = "session_affinity"

    def __init__(self) -> None:
        self._least_load = LeastLoad()

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        if query.session is None:
            return self._least_load.choose(query, candidates, rng)
        index, is_first = home_of(query.session, candidates)
        return Choice(
            index,
            "preferred worker for the session"
            if is_first
            else "preferred worker for the session is over its share",
        )


class SessionScorer:
    """Scores 1 for the session's preferred worker, else 0."""

    pull: Pull = "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return at_home(query.session, candidates)


def at_home(key: str | int | None, candidates: Sequence[Candidate]) -> list[float]:
    scores = [0.0] * len(candidates)
    if key is not None:
        scores[home_of(key, candidates)[0]] = 1.0
    return scores
