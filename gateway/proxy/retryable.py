"""Answers of a worker that has done nothing for the request: another one may do it. Pure."""

from collections.abc import Collection

from gateway.core.decision import Decision
from gateway.core.outcome import UNLOADED

UNAVAILABLE = 503
"""An engine that says so (dead inside, asleep, overloaded) has done nothing for the request yet."""
NOT_FOUND = 404


def refusal_of(status: int, decision: Decision | None, failed: Collection[str]) -> str | None:
    """Why another worker is to be asked, or None. One that just unloaded an adapter says that there is no
    such model; a second one that says so is believed. `failed` says what became of the tries before."""
    if status == UNAVAILABLE:
        return "answered 503"
    if status != NOT_FOUND or decision is None or decision.query is None or UNLOADED in failed:
        return None
    return UNLOADED if decision.query.adapter is not None else None
