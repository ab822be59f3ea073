"""What a request takes at one worker, and costs the others there: in seconds, of plain values.

    start     the network, the step that runs, its own first token
    ahead     tokens booked there, at its learnt pace
    own       the tokens it will have to compute (what a doubtful stream promises counts as far as it is true)
    fetch     what its blocks on slower media take to load
    full      waiting for answers to end, where no block is free or no seat
  + price     what the tokens that are computed cost all others: the busier the fleet, the more
    running   the answers that run there: each makes the steps of all longer
    harm      what the tokens delay those answers by
    evict     what they push out of its cache, which somebody will ask for again

The price is what makes a fleet near saturation keep its caches apart. A token that is computed although
another worker holds it takes capacity from every request behind it: as much as the queue theory's
load ÷ (1 - load). A second of a slow worker is worth less than one of a fast one, so that the price is the
same everywhere: that of a mean worker.
"""

import math
from collections.abc import Mapping, Sequence

from gateway.core.decision import Candidate
from gateway.core.ledger import REQUEST_TOKENS
from gateway.core.worker import FULL_KV, Role
from gateway.policies.prefix_overlap import to_load

BASE, GAIN = 1.0, 2.0
"""Of the price: what a token costs the others in a fleet that is idle (whoever comes next finds the prefix in
one place more, and something else in none), and what the load adds. On the Mooncake conversation trace, where
both were tried from 0 to 4, more reuse than that costs as much waiting as it saves."""
MOST_BUSY = 0.95
LOOK = 1 / 256
"""How much of what is believed of the fleet's load each decision renews."""
HARM = 0.05
"""Of a second by which a running answer is delayed by a prompt, as part of one by which a first token is: the
delay is spread over many tokens."""
CROWD = 0.3
"""The same of a second by which an answer takes longer because one more of them runs there: the newcomer has
it too, and nobody's seat is free until then. From 0.05 on, workers of which one has an answer more than the
others fill their seats one after the other and not all together, which is what waits last: tried on groups of
long answers up to what a fleet can decode, where 0.2 and 0.3 do best."""
REUSE_S = 300.0
"""Within which most prefixes are asked for again that ever are: what a worker is about to evict is worth the
less the longer it lay there."""


class Price:
    """What one computed token costs all other requests, by the load as decisions found it: on average they
    see what there is on average. By name (a model's, or one of its parts)."""

    def __init__(self) -> None:
        self._busy: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"Price({ {name: round(busy, 2) for name, busy in self._busy.items()} })"

    def twin(self) -> "Price":
        other = Price()
        other._busy = dict(self._busy)
        return other

    def see(self, name: str, candidates: Sequence[Candidate]) -> None:
        num_busy = 0
        for candidate in candidates:
            if candidate.booked_tokens:
                num_busy += 1
        busy = self._busy.get(name, 0.0)
        self._busy[name] = busy + (num_busy / len(candidates) - busy) * LOOK

    def per_token_s(self, name: str, candidates: Sequence[Candidate], base: float = BASE) -> float:
        busy = min(self._busy.get(name, 0.0), MOST_BUSY)
        return (base + GAIN * busy / (1.0 - busy)) * mean_token_s(candidates)


def mean_token_s(candidates: Sequence[Candidate]) -> float:
    speed = 0.0
    for candidate in candidates:
        speed += 1.0 / candidate.pace.token_s
    return len(candidates) / speed


def ttft_s(candidate: Candidate, worth: Mapping[str, float]) -> float:
    pace = candidate.pace
    num_running = candidate.num_in_flight
    each: float = pace.token_s + num_running * pace.seq_s
    seconds: float = pace.start_s + num_running * pace.start_seq_s
    seconds += (candidate.booked_tokens + candidate.uncached_tokens) * each
    if candidate.offloaded:
        seconds += to_load(candidate.offloaded, worth) * pace.token_s
    if candidate.kv_usage > FULL_KV or num_running >= pace.seats:
        seconds += until_free_s(candidate)
    return seconds


def others_s(candidate: Candidate, price: float) -> float:
    cost = candidate.uncached_tokens * price
    if candidate.num_in_flight or candidate.num_waiting:
        cost += running_s(candidate) + harm_s(candidate)
    if candidate.stays_s < math.inf:
        cost += evict_s(candidate)
    return cost


def parts_s(candidate: Candidate, worth: Mapping[str, float], price: float) -> dict[str, float]:
    """All of them by name; they add up to `ttft_s` and `others_s`."""
    return first_parts_s(candidate, worth) | {
        "price_s": candidate.uncached_tokens * price,
        "running_s": running_s(candidate),
        "harm_s": harm_s(candidate),
        "evict_s": evict_s(candidate),
    }


def first_parts_s(candidate: Candidate, worth: Mapping[str, float]) -> dict[str, float]:
    """What adds up to `ttft_s`."""
    pace = candidate.pace
    each = pace.token_s + candidate.num_in_flight * pace.seq_s
    return {
        "start_s": pace.start_s + candidate.num_in_flight * pace.start_seq_s,
        "ahead_s": candidate.booked_tokens * each,
        "own_s": candidate.uncached_tokens * each,
        "fetch_s": to_load(candidate.offloaded, worth) * pace.token_s,
        "full_s": until_free_s(candidate),
    }


def running_s(candidate: Candidate) -> float:
    """What the engine reports as waiting beyond what we sent counts too."""
    num_running: int = max(candidate.num_in_flight, candidate.num_waiting)
    pace = candidate.pace
    each: float = REQUEST_TOKENS * pace.token_s + CROWD * pace.answer_tokens * pace.step_seq_s
    return num_running * each


def harm_s(candidate: Candidate) -> float:
    """Whoever computes prompts for others has no answers that run."""
    if candidate.worker.role is Role.PREFILL:
        return 0.0
    harm: float = HARM * candidate.num_in_flight * candidate.uncached_tokens * candidate.pace.harm_s
    return harm


def evict_s(candidate: Candidate) -> float:
    evict: float = candidate.uncached_tokens * candidate.pace.token_s * math.exp(-candidate.stays_s / REUSE_S)
    return evict


def until_free_s(candidate: Candidate) -> float:
    pace = candidate.pace
    seconds: float = pace.seat_s(candidate.num_in_flight)
    if candidate.kv_usage > FULL_KV:
        between_s = pace.between_s(max(candidate.num_in_flight, 1))
        seconds = max(seconds, (candidate.num_waiting + 1) * between_s)
    return seconds
