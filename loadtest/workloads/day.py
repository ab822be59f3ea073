"""Requests at a rate that swings as in a day, with bursts.

    rate(t) = `rate` · (1 - SWING · cos(2π · t / `seconds`)) · bursts

from the quietest moment to the busiest and back. BURSTS_PER_HOUR bursts on average come at random; each
multiplies the rate by 1.5 to 2.5 within RISE_S, and lasts BURST_S. Each request has one of some system
prompts, the first ones much more popular, and a text of its own with a long tail.
"""

import math
import random
from array import array
from collections.abc import Callable, Iterator

from gateway.replay.job import HashedPrompt, ReplayJob

DAY_S, HOUR_S = 86_400.0, 3600.0
SWING = 0.6
BURSTS_PER_HOUR = 2.0
RISE_S, BURST_S = 60.0, (180.0, 600.0)
HEIGHT = 0.5, 1.5
"""Increase of the rate by a burst, relative to it."""
MOST_TIMES = 4.0
"""Bound of what bursts at once multiply the rate by."""
SPREAD = 0.8
"""Standard deviation of the logarithms of lengths."""
BLOCK = 512
PREFIXES, PREFIX_BLOCKS = 20, 4
OWN, OWN_MOST, ANSWER, ANSWER_MOST = 2000.0, 30_000, 200.0, 2000


def rates(rate: float, seconds: float, rng: random.Random) -> Callable[[float], float]:
    """Rate of requests by the seconds since the begin."""
    bursts: list[tuple[float, float, float]] = []
    at = 0.0
    while (at := at + rng.expovariate(BURSTS_PER_HOUR / HOUR_S)) < seconds:
        bursts.append((at, at + rng.uniform(*BURST_S), rng.uniform(*HEIGHT)))

    def rate_at(now: float) -> float:
        phase = 2 * math.pi * now / seconds
        more = sum(_share(now, *burst) for burst in bursts)
        return rate * (1.0 - SWING * math.cos(phase)) * min(1.0 + more, MOST_TIMES)

    return rate_at


def _share(now: float, begin_s: float, end_s: float, height: float) -> float:
    """Share that a burst adds; it rises and falls within RISE_S."""
    return height * max(0.0, min(1.0, (now - begin_s) / RISE_S, (end_s - now) / RISE_S))


def day(seed: int, *, rate: float, seconds: float) -> Iterator[ReplayJob]:
    rng = random.Random(seed)
    rate_at = rates(rate, seconds, rng)
    most, at, number = rate * (1.0 + SWING) * MOST_TIMES, 0.0, 0
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() * most > rate_at(at):
            continue
        number += 1
        prefix = min(int(rng.paretovariate(1.0)) - 1, PREFIXES - 1)
        num_own, num_output = _drawn(rng, OWN, OWN_MOST), _drawn(rng, ANSWER, ANSWER_MOST)
        own = [1 << 40 | number << 8 | i for i in range(-(-num_own // BLOCK))]
        blocks = array("Q", [*(prefix << 8 | i for i in range(PREFIX_BLOCKS)), *own])
        yield ReplayJob(at, HashedPrompt(blocks, BLOCK, PREFIX_BLOCKS * BLOCK + num_own), num_output)


def _drawn(rng: random.Random, mean: float, most: int) -> int:
    """Length with a long tail (log-normal), and this mean before it is cut."""
    return max(1, min(most, int(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD))))
