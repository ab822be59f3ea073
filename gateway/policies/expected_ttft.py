"""The default policy: the worker with the lowest predicted TTFT plus cost to others
(`costs/cost_model.py`), and copies of prefixes that many requests share where they pay
(`costs/copy_budgets.py`)."""

import math
import random
from collections.abc import Mapping, Sequence

from gateway.core.blocks import BlockHash
from gateway.core.decision import Candidate, Choice, Query
from gateway.costs.copy_budgets import CopyBudgets
from gateway.costs.cost_model import (
    TokenPrice,
    bounded,
    computing_s,
    other_token_s,
    parts_s,
    pick_cheapest,
    running_s,
    ttft_s,
    with_copy_s,
)
from gateway.costs.token_work import WORTH
from gateway.policies.prefix_overlap import PrefixOverlap


class ExpectedTtft:
    """The lowest predicted TTFT plus cost to others; `worth` by medium, as in `prefix_overlap`."""

    name = "expected_ttft"

    def __init__(self, worth: Mapping[str, float] = WORTH) -> None:
        self.worth = worth
        self.price = TokenPrice()
        self.budgets = CopyBudgets()
        self._overlap = PrefixOverlap(worth)

    def __repr__(self) -> str:
        return f"ExpectedTtft({self.price}, {self.budgets})"

    def twin(self) -> "ExpectedTtft":
        """Return a copy with the same price and budgets."""
        other = ExpectedTtft(self.worth)
        other.price, other.budgets = self.price.twin(), self.budgets.twin()
        return other

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        self.price.see(query.model, candidates)
        price = self.price.per_token_s(query.model, candidates)
        firsts: list[float] = []
        tokens: list[float] = []
        costs: list[float] = []
        for candidate in candidates:
            first_s, each_s = ttft_s(candidate, self.worth), other_token_s(candidate, price)
            firsts.append(first_s)
            tokens.append(each_s)
            cost_s = first_s + candidate.uncached_tokens * each_s
            if candidate.num_in_flight or candidate.num_waiting:
                cost_s += running_s(candidate)
            costs.append(cost_s)
        if not query.predicts:
            index = self._overlap.choose(query, candidates, rng).index
            return Choice(
                index,
                "predictions are far off: longest prefix, least work ahead",
                tuple(costs),
                firsts[index],
            )
        if query.cached is None:
            within = bounded(candidates, costs, firsts, price)
            index = pick_cheapest(candidates, within, firsts, rng)
        else:
            index, within = self._reuse_or_copy(
                query, query.cached, candidates, costs, firsts, tokens, price, rng
            )
        reason = _reason(candidates, index)
        if within is not costs and within[costs.index(min(costs))] == math.inf:
            reason = "cheaper workers have a much longer predicted TTFT"
        return Choice(index, reason, tuple(costs), firsts[index])

    def _reuse_or_copy(
        self,
        query: Query,
        prefix: BlockHash,
        candidates: Sequence[Candidate],
        costs: list[float],
        firsts: list[float],
        tokens: list[float],
        price: float,
        rng: random.Random,
    ) -> tuple[int, list[float]]:
        """Choose among workers of which some have the prompt's longest cached prefix; `costs` change to those
        with the prefix's budget. `tokens` are the costs of one computed token to others. Also returns the
        costs within the bound."""
        num_cached, budget_s = query.cached_tokens, self.budgets.of(prefix, query.now_s)
        waits_for = math.inf
        for i, candidate in enumerate(candidates):
            with_s = with_copy_s(candidate, costs[i], num_cached, tokens[i])
            waits_for = min(waits_for, with_s)
            costs[i] = max(with_s, costs[i] - budget_s)
        within = bounded(candidates, costs, firsts, price, budget_s, num_cached)
        index = pick_cheapest(candidates, within, firsts, rng)
        if candidates[index].overlap_tokens < num_cached:
            self.budgets.spent(prefix)
        else:
            waits_s = costs[index] - waits_for - computing_s(candidates[index], query.computing_tokens)
            self.budgets.waited(prefix, waits_s, query.now_s)
        return index, within

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
