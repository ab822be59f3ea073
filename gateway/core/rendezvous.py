"""Rendezvous hashing: a preferred worker for each key, with few moves when workers join or drain.

Each key ranks all workers by a hash of both, so a worker that drains moves only its own keys, every gateway
ranks alike, and no state is kept. The load is bounded (Mirrokni et al. 2018, "Consistent Hashing with Bounded
Loads"): a worker with more than its share passes the key on to the next in rank.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

from xxhash import xxh3_64_intdigest

from gateway.core.decision import Candidate
from gateway.core.worker import WorkerId

BOUND = 1.25
"""A worker may have this multiple of the mean number of requests. A lower bound moves keys more often, a
higher one makes queues longer; HAProxy advises 1.25 to 2."""

_MASK = (1 << 64) - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64: each input bit changes half of the output bits."""


def home_of(key: str | int, candidates: Sequence[Candidate], bound: float = BOUND) -> tuple[int, bool]:
    """Return the index of the key's worker, and True if that is the first in rank rather than the next one
    with room."""
    number = _hash(key) if isinstance(key, str) else key
    requests = [max(c.num_in_flight, c.num_waiting) for c in candidates]
    room = ceil(bound * (sum(requests) + 1) / len(candidates))
    first = best = -1
    first_rank = best_rank = -1
    for i, candidate in enumerate(candidates):
        rank = _mixed(number ^ _number_of(candidate.worker.id))
        if rank > first_rank:
            first, first_rank = i, rank
        if rank > best_rank and requests[i] < room:
            best, best_rank = i, rank
    return best, best == first


def ranked(key: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in the key's rank order."""
    number = _hash(key)
    return sorted(candidates, key=lambda c: _mixed(number ^ _number_of(c.worker.id)), reverse=True)


@lru_cache(maxsize=4096)
def _number_of(worker: WorkerId) -> int:
    """Return a worker's number, the same in all processes (unlike Python's own hash of a text)."""
    return _hash(worker)


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _mixed(number: int) -> int:
    number = (number ^ number >> 30) * _FIRST & _MASK
    number = (number ^ number >> 27) * _SECOND & _MASK
    return number ^ number >> 31
