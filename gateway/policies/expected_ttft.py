"""The default policy: the worker with the lowest predicted TTFT plus cost to others (`cost_model.py`)."""

import random
from collections.abc import Mapping, Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.cost_model import TokenPrice, others_s, parts_s, pick_cheapest, ttft_s
from gateway.policies.prefix_overlap import WORTH


class ExpectedTtft:
    """The lowest predicted TTFT plus cost to others; `worth` by medium, as in `prefix_overlap`."""

    name = "expected_ttft"

    def __init__(self, worth: Mapping[str, float] = WORTH) -> None:
        self.worth = worth
        self.price = TokenPrice()

    def __repr__(self) -> str:
        return f"ExpectedTtft({self.price})"

    def twin(self) -> "ExpectedTtft":
        """Return a copy with the same price."""
        other = ExpectedTtft(self.worth)
        other.price = self.price.twin()
        return other

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        self.price.see(query.model, candidates)
        price = self.price.per_token_s(query.model, candidates)
        firsts: list[float] = []
        costs: list[float] = []
        for candidate in candidates:
            first_s = ttft_s(candidate, self.worth)
            firsts.append(first_s)
            costs.append(first_s + others_s(candidate, price))
        index = pick_cheapest(candidates, costs, firsts, rng)
        return Choice(index, _reason(candidates, index), tuple(costs), firsts[index])

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> list[Mapping[str, float]]:
        """Return each candidate's cost by its parts, at the fleet's current load."""
        price = self.price.per_token_s(query.model, candidates)
        return [parts_s(candidate, self.worth, price) for candidate in candidates]


def _reason(candidates: Sequence[Candidate], index: int) -> str:
    longest = 0
    for candidate in candidates:
        if candidate.overlap_tokens > longest:
            longest = candidate.overlap_tokens
    if candidates[index].overlap_tokens < longest:
        return "lower predicted TTFT than the longest-prefix worker"
    return (
        "longest cached prefix and lowest predicted TTFT"
        if longest
        else "no cached prefix: lowest predicted TTFT"
    )
