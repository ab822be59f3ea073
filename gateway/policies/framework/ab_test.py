"""A/B test: several active policies, each for its share of the sessions.

A session stays with its policy, in every gateway and over restarts, so that one policy does not undo the
placement of another. A request without a session is a session of its own.
"""

import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate

from xxhash import xxh3_64_intdigest

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import Policy, reads_prefix
from gateway.policies.framework.composed_policy import twin_of

SEED = 1
"""Seed of a hash other than that of preferred workers; else each policy would get workers of its own."""


class ABTest:
    """Several policies in use; `shares` are relative: 90 and 10, or .9 and .1."""

    name = "ab"

    def __init__(self, policies: Mapping[str, Policy], shares: Mapping[str, float]) -> None:
        self._policies = policies
        self.reads_prefix = any(map(reads_prefix, policies.values()))
        self._names = list(policies)
        total = sum(shares.values())
        self.shares = {name: shares[name] / total for name in policies}
        self._bounds = list(accumulate(self.shares.values()))[:-1]

    def __repr__(self) -> str:
        return f"ABTest({self.shares})"

    def twin(self) -> "ABTest":
        return ABTest({name: twin_of(policy) for name, policy in self._policies.items()}, self.shares)

    def policy_of(self, name: str) -> Policy | None:
        return self._policies.get(name)

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        name = self._names[bisect(self._bounds, _place(query.session, rng))]
        choice = self._policies[name].choose(query, candidates, rng)
        return Choice(choice.index, choice.reason, choice.terms, choice.ttft_s, name)


def _place(session: str | None, rng: random.Random) -> float:
    """Return a session's position among the shares, from 0 to 1."""
    if session is None:
        return rng.random()
    return xxh3_64_intdigest(session.encode("utf-8", "surrogatepass"), SEED) / (1 << 64)
