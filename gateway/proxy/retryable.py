"""Retryable status: answers of a worker that did no work for the request, which another may do.

503, 429, 529   a refusal, as a 500 may be (`http/refusal.py`): another worker
404        to an adapter, which was just unloaded: another worker
3xx        a redirect: 502, and nothing against the worker, since a client may have chosen the path
"""

from collections.abc import Collection
from typing import Final

from gateway.core.decision import Decision
from gateway.core.errors import WorkerFailed
from gateway.core.outcome import UNLOADED
from gateway.http.messages import ResponseHead
from gateway.http.redirect import is_redirect, redirect_of
from gateway.runtime.rate_limited_log import RateLimitedLog

NOT_FOUND: Final = 404


def unloaded(status: int, decision: Decision | None, failed: Collection[str]) -> str | None:
    """Return the reason to try another worker after a 404, or None. A worker that just unloaded an adapter
    answers that the model does not exist; the same answer of a second worker is final. `failed` has earlier
    reasons."""
    if status != NOT_FOUND or decision is None or decision.query is None or UNLOADED in failed:
        return None
    return UNLOADED if decision.query.adapter is not None else None


def redirected(
    head: ResponseHead, decision: Decision | None, log: RateLimitedLog, log_id: str
) -> WorkerFailed | None:
    """Return the error in place of a redirect, and log its target; None for other answers."""
    if not is_redirect(head.status):
        return None
    worker = decision.worker.id if decision is not None else None
    text = "worker %s: answered %s; the client gets 502; request %s"
    log.warning(text, worker, redirect_of(head.status, head.headers), log_id)
    return WorkerFailed(f"the worker answered {head.status}, a redirect, which is not followed")
