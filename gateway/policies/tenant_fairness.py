"""Tenant fairness: a tenant that uses more than its share keeps to a part of the workers.

Virtual token counters (Sheng et al. 2024, "Fairness in Serving Large Language Models") measure the usage:
each tenant's prompt tokens are counted, and all counts are halved whenever their sum exceeds the window, so
that recent tokens count most. A tenant above its share (the sum divided by the number of tenants) may use its
own part of the workers (one in as many as there are tenants) and all idle ones; a tenant below may use any.
A flood thus queues behind itself, and an idle worker is never withheld. The order within a queue is not
decided here.
"""

from collections.abc import Sequence
from math import ceil

from gateway.core.decision import Candidate, Query
from gateway.core.ledger import REQUEST_TOKENS
from gateway.core.rendezvous import ranked

WINDOW_TOKENS = 1 << 20
"""About ten seconds of a fleet that computes a hundred thousand tokens a second."""
SLACK = 1.2
"""A tenant is limited above this multiple of its share: equal tenants are never quite equal."""


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
        """Count tokens of a tenant. True if it has used more than its share, with these."""
        self._tokens[tenant] = used = self._tokens.get(tenant, 0.0) + num_tokens
        self._sum += num_tokens
        num_tenants = len(self._tokens)
        is_above = num_tenants > 1 and used * num_tenants > self._sum * SLACK
        if self._sum > self._window_tokens:
            self._halve()
        return is_above

    def _halve(self) -> None:
        """Halve all counts; a tenant without requests is forgotten within some windows."""
        halved = {tenant: tokens / 2 for tenant, tokens in self._tokens.items()}
        self._tokens = {tenant: tokens for tenant, tokens in halved.items() if tokens >= REQUEST_TOKENS}
        self._sum = sum(self._tokens.values())
