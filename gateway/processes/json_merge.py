"""One answer of the admin API from those of several processes.

equal values                   as they are
objects                        field by field
lists of objects               those with the same id, url, worker, name or model are one
                               (where they tell `MOST_FIRST`, in its order)
other lists                    in turn from each, without repeats: each has its newest first
counts of each its own         (`ADDED`) added; means and shares (`AVERAGED`) averaged; other numbers are one
                               truth seen by each: the most, or the least of what is the better the more there
                               is of it (`LEAST`)
true or false                  true where all say so
words of state                 the one furthest from well; other words: the first process's
nothing, or something          something
"""

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

IDENTITIES = ("id", "url", "worker", "name", "model")
COUNTS = {"compared", "counted", "counted_differing", "sampled", "sampled_differing"}
SENT = {"sent_prompt_tokens", "sent_predicted_tokens"}
FALLBACKS = {"raised", "nonsense", "over_budget", "resting"}
SCORES = {
    "requests",
    "errors",
    "reported_prompt_tokens",
    "reported_cached_tokens",
    "agreed",
    "compared_prompt_tokens",
    "shadow_overlap_tokens",
    "live_overlap_tokens",
    "dropped",
}
CAUSES = {"tokens_differ", "never_stored", "evicted", "told_later", "not_told", "unknown"}
QUEUES = {"queued", "queued_tokens", "under_way"}
ENDS = {"served", "full", "displaced", "timeout", "deadline", "slo", "client_gone", "stopping"}
ADDED = frozenset(
    {
        "failures",
        "assumed_blocks",
        "calls",
        "entries",
        "bytes",
        "max_bytes",
        "computed_tokens",
        "new_tokens",
        "unexplained_tokens",
        "avoided_tokens",
        "missed_blocks",
        "recomputed_tokens",
        "recomputed_requests",
    }
    | COUNTS
    | SENT
    | FALLBACKS
    | SCORES
    | CAUSES
    | QUEUES
    | ENDS
)
LEAST = frozenset({"share_right", "confidence", "share", "requests_left", "tokens_left"})
AVERAGED = frozenset(
    {
        "hit_rate",
        "share_agreed",
        "ttft_p50_s",
        "ttft_p90_s",
        "predicted_ttft_s",
        "happened_ttft_s",
        "prediction_error",
    }
)
"""Of processes with the same share of the load, nearly what one would tell of all."""
MOST_FIRST = "recomputed_tokens"
WORST_FIRST = (
    *("broken", "sought", "absent", "none", "remote", "waiting"),
    *("joining", "joined"),
    *("down", "ejected", "draining", "warm_up", "active"),
    *("blind", "catching_up", "exact", "differ", "agree"),
)


def merge(values: Sequence[Any], name: str = "") -> Any:
    """Of at least one value; `name` is the field that they are of."""
    some = [value for value in values if value is not None]
    if not some:
        return None
    first = some[0]
    if isinstance(first, bool):
        return all(some)
    if isinstance(first, int | float):
        return _merge_numbers(some, name)
    if isinstance(first, Mapping):
        fields = dict.fromkeys(chain.from_iterable(some))
        return {field: merge([v[field] for v in some if field in v], field) for field in fields}
    if isinstance(first, list):
        return _merge_lists(some)
    known = [word for word in WORST_FIRST if word in some]
    return known[0] if known else first


def _merge_numbers(some: Sequence[Any], name: str) -> Any:
    if name in ADDED:
        return sum(some)
    if name in AVERAGED:
        return sum(some) / len(some)
    return min(some) if name in LEAST else max(some)


def _merge_lists(lists: Sequence[list[Any]]) -> list[Any]:
    """In turn: the first of each, then the second of each."""
    items = [item for turn in zip_longest(*lists) for item in turn if item is not None]
    together: dict[Any, list[Any]] = {}
    for number, item in enumerate(items):
        together.setdefault(_identity(item, number), []).append(item)
    merged = [merge([*same, *_doubts(same, len(lists))]) for same in together.values()]
    if all(isinstance(item, Mapping) and MOST_FIRST in item for item in merged):
        merged.sort(key=lambda item: -item[MOST_FIRST])
    return merged


def _doubts(same: Sequence[Any], num_lists: int) -> list[Any]:
    """Of an object that not all lists have: nothing is true of it everywhere."""
    if len(same) == num_lists or not isinstance(same[0], Mapping):
        return []
    return [{name: False for name, value in same[0].items() if isinstance(value, bool)}]


def _identity(item: Any, number: int) -> Any:
    if not isinstance(item, Mapping):
        return item if isinstance(item, str | int | float) else number
    return next((item[field] for field in IDENTITIES if field in item), number)
