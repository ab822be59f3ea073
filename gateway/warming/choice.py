"""The choice of prefixes that a worker is sent, by the reuse that is predicted there. Pure.

A token that is sent costs the worker the time to compute it and a place in its cache, and saves that time
with each request that finds it there. So prefixes are chosen by their predicted requests per minute at that
worker, the most frequent first, until the share of the cache is used up. A prefix is sent whole, from the
beginning of the prompt: one request fills the cache with all prefixes that lie on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MIN_PER_MINUTE: Final = 0.2
"""Requests per minute at the worker below which a prefix is not worth its tokens."""
SPILL: Final = 0.1
"""Part of the requests for a prefix that leave its holders although one of them is idle."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A run of tokens behind the run at position `parent` (-1: the beginning of the prompt).

    `num_new` are its tokens that the worker lacks: all of them where some of its parent's are lacking, 0
    where it holds them. `per_minute` are the predicted requests at the worker."""

    parent: int
    num_new: int
    per_minute: float


class Chosen(NamedTuple):
    """The prefix that ends with the run at position `end`, and the tokens that the worker will compute."""

    end: int
    num_new: int


def predicted_reuse(per_minute: float, holders: Sequence[float]) -> float:
    """Return the requests per minute for a prefix that would come to one more worker. `holders` has the share
    of busy time of each worker that holds it.

    Holders keep their part, as many parts as they are; while one of them is idle, nearly all requests go
    there."""
    busy = min(holders, default=1.0)
    return per_minute / (1 + len(holders)) * (SPILL + (1.0 - SPILL) * busy)


def choose(prospects: Sequence[Prospect], max_tokens: int, max_prefixes: int) -> list[Chosen]:
    """Return the chosen prefixes, the most frequently used first. Together they have at most `max_tokens` new
    tokens. Parents come before their children in `prospects`."""
    order = sorted(range(len(prospects)), key=lambda at: (-prospects[at].per_minute, at))
    chosen, ends = set[int](), set[int]()
    for at in order:
        each = prospects[at]
        if at in chosen or not each.num_new or each.per_minute < MIN_PER_MINUTE:
            continue
        path = _lacking(prospects, at, chosen)
        num = sum(prospects[one].num_new for one in path)
        last = prospects[path[-1]].parent
        if num <= max_tokens and len(ends) + (last not in ends) <= max_prefixes:
            max_tokens -= num
            chosen.update(path)
            ends.discard(last)
            ends.add(at)
    sent = set[int]()
    return [_sent(prospects, at, sent) for at in order if at in ends]


def _sent(prospects: Sequence[Prospect], end: int, sent: set[int]) -> Chosen:
    """Return a chosen prefix, without the tokens of those that were sent before it."""
    path = _lacking(prospects, end, sent)
    sent.update(path)
    return Chosen(end, sum(prospects[one].num_new for one in path))


def _lacking(prospects: Sequence[Prospect], at: int, chosen: set[int]) -> list[int]:
    """Return the run and those before it that are neither chosen nor held, from the last to the first."""
    path = [at]
    while (at := prospects[at].parent) >= 0 and at not in chosen and prospects[at].num_new:
        path.append(at)
    return path
