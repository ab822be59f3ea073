"""Retryable status: answers of a worker that did no work for the request, which another may do. Pure.

503, 429   a refusal (`http/refusal.py`): another worker
404        to an adapter, which was just unloaded: another worker
"""

from collections.abc import Collection
from typing import Final

from gateway.core.decision import Decision
from gateway.core.outcome import UNLOADED

NOT_FOUND: Final = 404


def unloaded(status: int, decision: Decision | None, failed: Collection[str]) -> str | None:
    """Return the reason to try another worker after a 404, or None. A worker that just unloaded an adapter
    answers that the model does not exist; the same answer of a second worker is final. `failed` has earlier
    reasons."""
    if status != NOT_FOUND or decision is None or decision.query is None or UNLOADED in failed:
        return None
    return UNLOADED if decision.query.adapter is not None else None
