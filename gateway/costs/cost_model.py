"""Cost model: the predicted TTFT of a request at one worker, and its cost to other requests, in seconds.

    start     the network, the running step, the request's own first token
    ahead     tokens to be computed before it there, at the learnt speed
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
In an idle fleet it costs nothing. A second of a slow worker is worth less than one of a fast one, so
the price is the same everywhere: that of a mean worker.

Whatever the costs say, no request waits much longer than at the best worker (`bounded`).
"""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.decision import ENDLESS, Candidate
from gateway.core.ledger import REQUEST_TOKENS
from gateway.core.worker import FULL_KV, Role
from gateway.costs.token_work import to_load

GAIN: Final = 2.0
"""The factor of the load in the price. On the Mooncake conversation trace, where it was tried from 0 to 4,
more reuse than that costs as much waiting as it saves."""
MOST_BUSY: Final = 0.95
LOOK: Final = 1 / 256
"""Weight of one decision in the moving average of the fleet's load."""
HARM: Final = 0.2
"""Weight of a second's delay of a running answer, relative to a second's delay of a first token: the former
is spread over many tokens. It is no option: under objectives of 0.5 to 5 s and 20 to 100 ms per token, a
fifth or four times of it (and of CROWD) moves goodput by 5 % at most, in either direction."""
CROWD: Final = 0.3
"""Weight of a second by which an answer takes longer because one more runs there: the new request has that
delay too, and every request occupies its part of the concurrency limit for longer. From 0.05 on, workers
reach their concurrency limits one after the other rather than together, which delays queueing: tried on
groups of long answers up to the fleet's decode capacity, where 0.2 and 0.3 do best."""
REUSE_S: Final = 300.0
"""Most prefixes that are ever reused are reused within this time: a block about to be evicted is worth less
the longer it has been unused."""

BOUND: Final = 1.1
FREE_S: Final = 0.1
"""No request goes where its predicted TTFT is over FREE_S and over BOUND times the lowest one, beyond what
others gain by that (`bounded`)."""

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

    def per_token_s(self, name: str, candidates: Sequence[Candidate]) -> float:
        busy = min(self._busy.get(name, 0.0), MOST_BUSY)
        return GAIN * busy / (1.0 - busy) * mean_token_s(candidates)


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
    """Seconds for one prompt token at the current load."""
    return candidate.speed.prefill_token_s(float(candidate.num_in_flight))


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
    cost = candidate.uncached_tokens * other_token_s(candidate, price)
    if candidate.num_in_flight or candidate.num_waiting:
        cost += running_s(candidate)
    return cost


def other_token_s(candidate: Candidate, price: float) -> float:
    """Return the cost of one computed token to other requests."""
    if candidate.num_in_flight:
        price += harm_token_s(candidate)
    if candidate.stays_s < ENDLESS:
        price += evict_token_s(candidate)
    return price


def parts_s(candidate: Candidate, worth: Mapping[str, float], price: float) -> dict[str, float]:
    """Return all parts of a cost by name; they add up to `ttft_s` and `others_s`."""
    return first_parts_s(candidate, worth) | {
        "price_s": candidate.uncached_tokens * price,
        "running_s": running_s(candidate),
        "slowdown_s": candidate.uncached_tokens * harm_token_s(candidate),
        "evict_s": candidate.uncached_tokens * evict_token_s(candidate),
    }


def first_parts_s(candidate: Candidate, worth: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of `ttft_s` by name."""
    speed = candidate.speed
    num_running = min(float(candidate.num_in_flight), speed.max_running)
    each = speed.token_s + num_running * speed.seq_s
    ahead_s = candidate.booked_tokens * each
    return {
        "start_s": speed.start_s + num_running * speed.start_seq_s,
        "booked_s": ahead_s,
        "prefill_s": candidate.uncached_tokens * each,
        "fetch_s": to_load(candidate.offloaded, worth) * speed.token_s,
        "wait_s": max(until_free_s(candidate) - ahead_s, 0.0),
    }


def running_s(candidate: Candidate) -> float:
    """Return the cost of running answers; requests that the engine reports as waiting, beyond those of this
    gateway, count too."""
    num_running: int = max(candidate.num_in_flight, candidate.num_waiting)
    speed = candidate.speed
    each: float = REQUEST_TOKENS * token_s(candidate) + CROWD * speed.answer_tokens * speed.step_seq_s
    return num_running * each


def harm_token_s(candidate: Candidate) -> float:
    """Return the cost of delaying running answers by one token, and the requests that wait for those to end;
    a prefill worker runs none."""
    if candidate.worker.role is Role.PREFILL:
        return 0.0
    speed, num = candidate.speed, float(candidate.num_in_flight)
    num_running = min(num, speed.max_running)
    harm: float = (HARM * num_running + num - num_running) * speed.harm_s
    return harm


def evict_token_s(candidate: Candidate) -> float:
    evict: float = token_s(candidate) * math.exp(-candidate.stays_s / REUSE_S)
    return evict


def with_copy_s(candidate: Candidate, cost_s: float, cached_tokens: int, each_s: float) -> float:
    """Return what a worker would cost if it had the longest cached prefix, of `cached_tokens`, too; `each_s`
    is its `other_token_s`."""
    num_missing = cached_tokens - candidate.overlap_tokens
    if num_missing <= 0:
        return cost_s
    return cost_s - num_missing * (token_s(candidate) + each_s)


def computing_s(candidate: Candidate, num_tokens: int) -> float:
    """Return how long a worker still computes so many tokens that it has not reported: another copy would be
    ready no sooner. A worker without an event stream reports nothing."""
    return min(num_tokens, candidate.booked_tokens) * token_s(candidate) if candidate.is_exact else 0.0


def bounded(
    candidates: Sequence[Candidate],
    costs: list[float],
    firsts: Sequence[float],
    price: float,
    budget_s: float = 0.0,
    cached_tokens: int = 0,
) -> list[float]:
    """Return the costs, infinite where the predicted TTFT exceeds the bound: BOUND times the lowest one, or
    FREE_S, plus the price of the tokens that this worker need not compute and the one with the lowest must,
    or plus the budget where this request makes a copy of a cached prefix."""
    lowest = min(firsts)
    limit = max(BOUND * lowest, FREE_S)
    if max(firsts) <= limit:
        return costs
    most = candidates[firsts.index(lowest)].uncached_tokens
    found = list(costs)
    for i, candidate in enumerate(candidates):
        spare = max(most - candidate.uncached_tokens, 0) * price
        if candidate.overlap_tokens < cached_tokens:
            spare += budget_s
        if firsts[i] > limit + spare:
            found[i] = math.inf
    return found


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
