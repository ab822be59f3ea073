"""Cause of a wrong prediction, from the evidence at the end of the answer.

    cause          | predicted | evidence
    ---------------|-----------|---------------------------------------------------------------------------
    tokens_differ  | any       | the engine counts another number of prompt tokens, or stored other tokens
                   |           | than ours for such prompts
    never_stored   | too high  | events reported no more than was cached: the rest was booked by requests
                   |           | in flight, or assumed from finished ones
    evicted        | too high  | events had reported the blocks, and removals since
    reported_later | too low   | events report the blocks now: stored while the request was in flight
    not_reported   | too low   | events do not report the blocks: the engine caches more than it reports
    unknown        | too high  | events had reported the blocks and no removal since, but they were not cached

Without exact events, a surplus of a prompt of as many tokens is unknown, and no error (`core/prediction.py`).
"""

from dataclasses import dataclass
from enum import Enum


class ErrorCause(Enum):
    TOKENS_DIFFER = "tokens_differ"
    NEVER_STORED = "never_stored"
    EVICTED = "evicted"
    REPORTED_LATER = "reported_later"
    NOT_REPORTED = "not_reported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence about an answer with a wrong prediction, in tokens: `predicted` as cached, `from_events` of
    them reported by events, `cached` as the engine reported. `num_removed` counts blocks that events removed
    since the decision. `is_reported_now`: events report by now all that was cached."""

    predicted: int
    cached: int
    from_events: int
    num_removed: int
    is_reported_now: bool
    tokens_differ: bool


def cause_of(seen: Evidence) -> ErrorCause:
    if seen.tokens_differ:
        return ErrorCause.TOKENS_DIFFER
    if seen.cached > seen.predicted:
        return ErrorCause.REPORTED_LATER if seen.is_reported_now else ErrorCause.NOT_REPORTED
    if seen.from_events <= seen.cached:
        return ErrorCause.NEVER_STORED
    return ErrorCause.EVICTED if seen.num_removed else ErrorCause.UNKNOWN
