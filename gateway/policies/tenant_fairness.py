"""No tenant takes every worker's queue: who uses more than its share keeps to a part of the workers.

Virtual token counters (Sheng et al. 2024, "Fairness in Serving Large Language Models") say who that is: each
tenant's prompt tokens are counted, and all counts halved whenever their sum is a window's: the latest count.
A tenant above its share (the sum by the number of tenants) may have its own part of the workers, one in so
many, and all that are idle; whoever is below may have any. Thus a flood queues behind itself, and an idle
worker is never refused. Order within a queue is not made here.
"""

from collections.abc import Sequence
from math import ceil

from gateway.core.decision import Candidate, Query
from gateway.core.ledger import REQUEST_TOKENS
from gateway.policies.rendezvous import ranked

WINDOW_TOKENS = 1 << 20
"""What a fleet of a hundred thousand tokens a second computes in ten."""
SLACK = 1.2
"""Of its share before a tenant is kept back: equals are never quite equal."""


class FairnessFilter:
    def __init__(self, window_tokens: int = WINDOW_TOKENS) -> None:
        self._window_tokens = window_tokens
        self._tokens: dict[str, float] = {}
        self._sum = 0.0

    def __repr__(self) -> str:
        return f"FairnessFilter({len(self._tokens)} tenants)"

    def twin(self) -> "FairnessFilter":
        other = FairnessFilter(self._window_tokens)
        other._tokens, other._sum = dict(self._tokens), self._sum
        return other

    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        tenant = query.tenant or ""
        if not self._count(tenant, max(query.num_tokens, REQUEST_TOKENS)):
            return candidates
        num_own = ceil(len(candidates) / max(len(self._tokens), 1))
        own = {candidate.id for candidate in ranked(tenant, candidates)[:num_own]}
        return [c for c in candidates if c.id in own or not (c.booked_tokens or c.num_waiting)]

    def _count(self, tenant: str, num_tokens: int) -> bool:
        """Whether it has had more than its share, with these."""
        self._tokens[tenant] = used = self._tokens.get(tenant, 0.0) + num_tokens
        self._sum += num_tokens
        num_tenants = len(self._tokens)
        is_above = num_tenants > 1 and used * num_tenants > self._sum * SLACK
        if self._sum > self._window_tokens:
            self._halve()
        return is_above

    def _halve(self) -> None:
        """A tenant that asks no more is forgotten within some windows."""
        halved = {tenant: tokens / 2 for tenant, tokens in self._tokens.items()}
        self._tokens = {tenant: tokens for tenant, tokens in halved.items() if tokens >= REQUEST_TOKENS}
        self._sum = sum(self._tokens.values())
