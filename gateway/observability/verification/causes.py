"""Why a prediction was wrong, from what can be seen when the answer has ended.

    cause          | predicted | seen
    ---------------|-----------|---------------------------------------------------------------------------
    tokens_differ  | any       | the engine counts another number of prompt tokens, or was seen to store
                   |           | other tokens than ours for such prompts
    never_stored   | too much  | events told of no more than what was there: the rest was booked by requests
                   |           | under way, or assumed of earlier ones
    evicted        | too much  | events had told of it, and of removals since
    reported_later     | too little| events tell of it now: it was stored while the request was on its way
    not_told       | too little| events do not tell of it: the engine holds more than it says
    unknown        | too much  | events had told of it, of no removal since, and still it was not there

Too little with a worker that has no events is `not_reported`, which is no fault of anybody.
"""

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    TOKENS_DIFFER = "tokens_differ"
    NEVER_STORED = "never_stored"
    EVICTED = "evicted"
    REPORTED_LATER = "reported_later"
    NOT_REPORTED = "not_reported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one answer whose prediction was wrong. Tokens: `predicted` as cached, of them `from_events` known by
    events, `cached` as the engine told. `num_removed`: blocks that events took away since the decision.
    `is_told_now`: events tell by now of all that was cached. `tokens_differ`: see above."""

    predicted: int
    cached: int
    from_events: int
    num_removed: int
    is_told_now: bool
    tokens_differ: bool


def why(seen: Evidence) -> Cause:
    if seen.tokens_differ:
        return Cause.TOKENS_DIFFER
    if seen.cached > seen.predicted:
        return Cause.REPORTED_LATER if seen.is_told_now else Cause.NOT_REPORTED
    if seen.from_events <= seen.cached:
        return Cause.NEVER_STORED
    return Cause.EVICTED if seen.num_removed else Cause.UNKNOWN
