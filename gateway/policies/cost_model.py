"""Cost model: the predicted TTFT of a request at one worker, and its cost to other requests, in seconds.

    start     the network, the running step, the request's own first token
    ahead     tokens booked there, at the learnt speed
    own       prompt tokens to compute (the overlap of a doubtful stream counts in part)
    fetch     loading blocks from slower media
    full      waiting for answers to end, where no block is free or the concurrency limit is reached, beyond
              the time of the tokens ahead, which are computed meanwhile
  + price     the cost of computed tokens to all other requests: the busier the fleet, the higher
    running   the answers that run there: each makes the steps of all longer
    harm      the delay of those answers by the computed tokens
    evict     blocks pushed out of the cache that later requests would have used

The price makes a fleet near saturation keep its caches distinct. A token that is computed although another
worker has it cached takes capacity from every later request: as much as queueing theory's load ÷ (1 - load).
A second of a slow worker is worth less than one of a fast one, so the price is the same everywhere: that of
a mean worker.
"""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.decision import ENDLESS, Candidate
from gateway.core.ledger import REQUEST_TOKENS
from gateway.core.worker import FULL_KV, Role
from gateway.policies.prefix_overlap import to_load

BASE: Final = 1.0
GAIN: Final = 2.0
"""The price per token in an idle fleet (a second copy of a prefix evicts another one), and the factor of the
load. On the Mooncake conversation trace, where both were tried from 0 to 4, more reuse than that costs as
much waiting as it saves."""
MOST_BUSY: Final = 0.95
LOOK: Final = 1 / 256
"""Weight of one decision in the moving average of the fleet's load."""
HARM: Final = 0.05
"""Weight of a second's delay of a running answer, relative to a second's delay of a first token: the former
is spread over many tokens."""
CROWD: Final = 0.3
"""Weight of a second by which an answer takes longer because one more runs there: the new request has that
delay too, and every request occupies its part of the concurrency limit for longer. From 0.05 on, workers
reach their concurrency limits one after the other rather than together, which delays queueing: tried on
groups of long answers up to the fleet's decode capacity, where 0.2 and 0.3 do best."""
REUSE_S: Final = 300.0
"""Most prefixes that are ever reused are reused within this time: a block about to be evicted is worth less
the longer it has been unused."""

ALIKE: Final = 0.15
"""An idle worker is as good as the cheapest one if its predicted TTFT is longer by no more than this share:
single requests vary by as much. Else a quiet fleet sends everything to the worker that looks fastest by
chance, and the speeds of the others are never seen again."""


class TokenPrice:
    """The cost of one computed token to all other requests, from the average load that decisions found. Loads
    are kept by name (of a model, or of one of its roles)."""

    def __init__(self) -> None:
        self._busy: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"TokenPrice({ {name: round(busy, 2) for name, busy in self._busy.items()} })"

    def twin(self) -> "TokenPrice":
        other = TokenPrice()
        other._busy = dict(self._busy)
        return other

    def see(self, name: str, candidates: Sequence[Candidate]) -> None:
        num_busy = 0.0
        for candidate in candidates:
            if candidate.booked_tokens:
                num_busy += prefill_share(candidate)
        busy = self._busy.get(name, 0.0)
        self._busy[name] = busy + (num_busy / len(candidates) - busy) * LOOK

    def per_token_s(self, name: str, candidates: Sequence[Candidate], base: float = BASE) -> float:
        busy = min(self._busy.get(name, 0.0), MOST_BUSY)
        return (base + GAIN * busy / (1.0 - busy)) * mean_token_s(candidates)


def prefill_share(candidate: Candidate) -> float:
    """Share of its time that a worker with booked tokens computes prompts: all of it, unless answers have to
    end before those prompts begin."""
    speed = candidate.speed
    if candidate.num_in_flight < speed.max_running:
        return 1.0
    ahead_s: float = candidate.booked_tokens * (speed.token_s + speed.max_running * speed.seq_s)
    wait_s: float = speed.wait_s(candidate.num_in_flight)
    return ahead_s / max(ahead_s, wait_s)


def mean_token_s(candidates: Sequence[Candidate]) -> float:
    total = 0.0
    for candidate in candidates:
        total += 1.0 / token_s(candidate)
    return len(candidates) / total


def token_s(candidate: Candidate) -> float:
    """Seconds for one prompt token at the current load. Under steady load the two weights of the speed model
    are known in sum only: one alone differs between equal workers."""
    speed = candidate.speed
    seconds: float = speed.token_s + min(float(candidate.num_in_flight), speed.max_running) * speed.seq_s
    return seconds


def ttft_s(candidate: Candidate, worth: Mapping[str, float]) -> float:
    speed = candidate.speed
    num_running, ahead_s = float(candidate.num_in_flight), 0.0
    if candidate.kv_usage > FULL_KV or num_running >= speed.max_running:
        ahead_s = until_free_s(candidate)
        num_running = min(num_running, speed.max_running)
    each: float = speed.token_s + num_running * speed.seq_s
    seconds: float = speed.start_s + num_running * speed.start_seq_s
    seconds += max(candidate.booked_tokens * each, ahead_s) + candidate.uncached_tokens * each
    if candidate.offloaded:
        seconds += to_load(candidate.offloaded, worth) * speed.token_s
    return seconds


def others_s(candidate: Candidate, price: float) -> float:
    cost = candidate.uncached_tokens * price
    if candidate.num_in_flight or candidate.num_waiting:
        cost += running_s(candidate) + harm_s(candidate)
    if candidate.stays_s < ENDLESS:
        cost += evict_s(candidate)
    return cost


def parts_s(candidate: Candidate, worth: Mapping[str, float], price: float) -> dict[str, float]:
    """Return all parts of a cost by name; they add up to `ttft_s` and `others_s`."""
    return first_parts_s(candidate, worth) | {
        "price_s": candidate.uncached_tokens * price,
        "running_s": running_s(candidate),
        "harm_s": harm_s(candidate),
        "evict_s": evict_s(candidate),
    }


def first_parts_s(candidate: Candidate, worth: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of `ttft_s` by name."""
    speed = candidate.speed
    num_running = min(float(candidate.num_in_flight), speed.max_running)
    each = speed.token_s + num_running * speed.seq_s
    ahead_s = candidate.booked_tokens * each
    return {
        "start_s": speed.start_s + num_running * speed.start_seq_s,
        "ahead_s": ahead_s,
        "own_s": candidate.uncached_tokens * each,
        "fetch_s": to_load(candidate.offloaded, worth) * speed.token_s,
        "full_s": max(until_free_s(candidate) - ahead_s, 0.0),
    }


def running_s(candidate: Candidate) -> float:
    """Return the cost of running answers; requests that the engine reports as waiting, beyond those of this
    gateway, count too."""
    num_running: int = max(candidate.num_in_flight, candidate.num_waiting)
    speed = candidate.speed
    each: float = REQUEST_TOKENS * token_s(candidate) + CROWD * speed.answer_tokens * speed.step_seq_s
    return num_running * each


def harm_s(candidate: Candidate) -> float:
    """Return the cost of delaying running answers; a prefill worker runs none."""
    if candidate.worker.role is Role.PREFILL:
        return 0.0
    num_running = min(float(candidate.num_in_flight), candidate.speed.max_running)
    harm: float = HARM * num_running * candidate.uncached_tokens * candidate.speed.harm_s
    return harm


def evict_s(candidate: Candidate) -> float:
    evict: float = candidate.uncached_tokens * token_s(candidate) * math.exp(-candidate.stays_s / REUSE_S)
    return evict


def until_free_s(candidate: Candidate) -> float:
    speed = candidate.speed
    seconds: float = speed.wait_s(candidate.num_in_flight)
    if candidate.kv_usage > FULL_KV:
        interval_s = speed.interval_s(max(candidate.num_in_flight, 1))
        seconds = max(seconds, (candidate.num_waiting + 1) * interval_s)
    return seconds


def pick_cheapest(
    candidates: Sequence[Candidate], costs: Sequence[float], firsts: Sequence[float], rng: random.Random
) -> int:
    """Return the index of the lowest cost; idle workers that cost hardly more (see ALIKE), and have as much
    cached, share the load with that one at random. `firsts` are the predicted TTFTs."""
    lowest = min(costs)
    index = costs.index(lowest)
    limit = lowest + ALIKE * firsts[index]
    near = [i for i, cost in enumerate(costs) if cost <= limit]
    if len(near) == 1:
        return index
    cheapest = candidates[index]
    equals = [i for i in near if costs[i] == lowest or _is_idle_with(candidates[i], cheapest)]
    if len(equals) == 1:
        return index
    equals.sort(key=costs.__getitem__)  # the order of candidates means nothing
    return rng.choice(equals)


def _is_idle_with(candidate: Candidate, cheapest: Candidate) -> bool:
    return (
        candidate.num_in_flight == 0
        and candidate.booked_tokens == 0
        and candidate.uncached_tokens <= cheapest.uncached_tokens
        and candidate.offloaded == cheapest.offloaded
    )
