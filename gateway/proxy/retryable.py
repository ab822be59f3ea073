"""Retryable status: answers of a worker that did no work for the request, which another may do. Pure."""

from collections.abc import Collection

from gateway.core.decision import Decision
from gateway.core.outcome import UNLOADED

UNAVAILABLE = 503
"""An engine that answers 503 (dead inside, asleep, overloaded) has done no work for the request."""
NOT_FOUND = 404


def refusal_of(status: int, decision: Decision | None, failed: Collection[str]) -> str | None:
    """Return the reason to try another worker, or None. A worker that just unloaded an adapter answers that
    the model does not exist; the same answer of a second worker is final. `failed` has earlier reasons."""
    if status == UNAVAILABLE:
        return "answered 503"
    if status != NOT_FOUND or decision is None or decision.query is None or UNLOADED in failed:
        return None
    return UNLOADED if decision.query.adapter is not None else None
