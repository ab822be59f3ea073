"""The rate of requests that workers can serve within objectives of TTFT and ITL, by their learnt speed.

With requests at a rate r, of O output tokens each, a share c of which have their prompt of P tokens computed
here, a worker that batches continuously has

    gap       step_s / (1 - r · (c · P · harm_s + O · step_seq_s))
    running   N = r · O · gap
    prompts   s = P · (token_s + N · seq_s) each, and busy = r · c · s
    TTFT      p90 = start_s + N · start_seq_s + ln(10) · s / (1 - busy)
    ITL       p90 = gap + 1.28 · harm_s · P · sqrt(2 · r · c · O · gap) / O

as in a queue with arrivals at random and prompts as variable as exponential ones: of these, r · c · O · gap
are computed while an answer runs, with the variance of a compound Poisson sum. The ITL is that of an answer,
the mean over its tokens. For one worker the estimate is cautious. Several serve more each: the router sends a
request to where it is answered first, as a common queue does, but also to where its prefix is. So n workers
have the TTFT of a queue with OPEN · n servers and prompts of log-normal length, with Sakasegawa's chance to
wait and the mean wait of Allen and Cunneen. `make bench-autoscale` compares the numbers of workers with the
smallest fleets that meet the objective in the replay.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

from gateway.core.speed import Speed

LATE = 0.1
"""Share of requests that may be late: objectives are for the 90th percentile."""
DEVIATIONS = 1.2816
"""Standard deviations from the mean to the 90th percentile of many small delays."""
MOST_BUSY = 0.9
"""Share of time for prompts, and of the steps for answers, beyond which a worker has no reserve."""
MOST_RUNNING = 0.8
"""Share of the concurrency limit that runs on average: more would queue for answers to end."""
UNREACHABLE = 2.0
"""Where an idle worker misses the TTFT objective, so many times its TTFT stands in for it."""
ITL_ROOM = 1.25
"""An ITL objective relative to an idle worker's ITL, at least."""
LEAST_RATE = 1e-9
"""Requests per second of a worker that is too slow for any, so that a number of workers is found."""

OPEN = 0.5
"""Share of the workers that a request may go to as to a common queue. Fitted to the replay."""
ROUNDS = 24
"""Halvings of an interval: to a ten-millionth."""
POINTS = tuple(NormalDist().inv_cdf((number + 0.5) / 32) for number in range(32))
"""Logarithms of lengths at equally likely points, in standard deviations from the median."""


class Mix(NamedTuple):
    """A mean request: prompt tokens that are computed, output tokens, and the variance of the first over its
    square."""

    prompt_tokens: float
    output_tokens: float
    spread: float = 1.0


class Objectives(NamedTuple):
    """Seconds that nine of ten requests meet: to the first token, and between tokens of an answer."""

    ttft_s: float
    itl_s: float = math.inf


def gap_s(speed: Speed, mix: Mix, rate: float, share: float = 1.0) -> float:
    """Seconds between two tokens of an answer, on average; infinite beyond what the worker can do."""
    load = rate * (share * mix.prompt_tokens * speed.harm_s + mix.output_tokens * speed.step_seq_s)
    return speed.step_s / (1.0 - load) if load < MOST_BUSY else math.inf


def num_running(speed: Speed, mix: Mix, rate: float, share: float = 1.0) -> float:
    """Answers that run at once, on average; infinite beyond what the worker can do."""
    gap = gap_s(speed, mix, rate, share)
    return gap if math.isinf(gap) else rate * mix.output_tokens * gap


def ttft_p90_s(speed: Speed, mix: Mix, rate: float, share: float = 1.0) -> float:
    """The 90th percentile of the TTFT at this rate of requests to one worker; infinite beyond its limits."""
    running = num_running(speed, mix, rate, share)
    if running > MOST_RUNNING * speed.max_running or math.isinf(running):
        return math.inf
    prompt_s = mix.prompt_tokens * (speed.token_s + running * speed.seq_s)
    busy = rate * share * prompt_s
    if busy >= MOST_BUSY:
        return math.inf
    if not share:
        prompt_s = 0.0
    return speed.start_s + running * speed.start_seq_s - math.log(LATE) * prompt_s / (1.0 - busy)


def itl_p90_s(speed: Speed, mix: Mix, rate: float, share: float = 1.0) -> float:
    """The 90th percentile of the ITL at this rate of requests to one worker; infinite beyond its limits, and
    0 without answers."""
    if not mix.output_tokens:
        return 0.0
    gap, num_tokens = gap_s(speed, mix, rate, share), max(mix.output_tokens, 1.0)
    if math.isinf(gap):
        return math.inf
    num_prompts = rate * share * num_tokens * gap
    return gap + DEVIATIONS * speed.harm_s * mix.prompt_tokens * math.sqrt(2.0 * num_prompts) / num_tokens


def meets(speed: Speed, mix: Mix, rate: float, objectives: Objectives, share: float = 1.0) -> bool:
    """True if one worker serves this rate of requests within the objectives."""
    if ttft_p90_s(speed, mix, rate, share) > objectives.ttft_s:
        return False
    return itl_p90_s(speed, mix, rate, share) <= objectives.itl_s


def reachable(speed: Speed, mix: Mix, objectives: Objectives) -> Objectives:
    """The objectives, with longer ones where not even an idle worker meets them. An ITL objective leaves at
    least `ITL_ROOM`: prompts delay answers, and a fleet that could compute none would have no size."""
    ttft_s, itl_s = ttft_p90_s(speed, mix, 0.0), itl_p90_s(speed, mix, 0.0)
    return Objectives(
        objectives.ttft_s if ttft_s < objectives.ttft_s else UNREACHABLE * ttft_s,
        max(objectives.itl_s, ITL_ROOM * itl_s),
    )


def is_reachable(speed: Speed, mix: Mix, objectives: Objectives) -> bool:
    """True if an idle worker meets the objectives."""
    is_soon = ttft_p90_s(speed, mix, 0.0) < objectives.ttft_s
    return is_soon and itl_p90_s(speed, mix, 0.0) < objectives.itl_s


def sustainable_rate(speed: Speed, mix: Mix, objectives: Objectives, steps: int = 30) -> float:
    """Requests per second that one worker serves within the objectives, or within those it can reach."""
    objectives = reachable(speed, mix, objectives)
    return highest(lambda rate: meets(speed, mix, rate, objectives), steps)


def highest(is_met: Callable[[float], bool], steps: int) -> float:
    """The highest rate at which something is met, as it is at all lower ones; each step halves the error."""
    low, high = 0.0, 1e-3
    while high < 1e6 and is_met(high):
        low, high = high, 2.0 * high
    for _ in range(steps):
        middle = (low + high) / 2.0
        if is_met(middle):
            low = middle
        else:
            high = middle
    return low


def workers_needed(speed: Speed, mix: Mix, objectives: Objectives, rate: float) -> float:
    """Workers that serve this rate of requests within the objectives, or within those they can reach; a part
    of one for little."""
    reached = reachable(speed, mix, objectives)
    low, high = 0.0, rate / max(sustainable_rate(speed, mix, objectives), LEAST_RATE)
    while not _serve(high, speed, mix, reached, rate):
        low, high = high, 2.0 * high
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        if _serve(middle, speed, mix, reached, rate):
            high = middle
        else:
            low = middle
    return high


def _serve(num: float, speed: Speed, mix: Mix, objectives: Objectives, rate: float) -> bool:
    """True if so many workers together serve this rate of requests within the objectives."""
    if not num or not rate:
        return not rate
    if itl_p90_s(speed, mix, rate / num) > objectives.itl_s:
        return False
    return late_share(speed, mix, rate / num, objectives.ttft_s, num) <= LATE


def late_share(speed: Speed, mix: Mix, rate: float, ttft_s: float, num_workers: float = 1.0) -> float:
    """Share of longer TTFTs at this rate of requests to each of some workers; 1 beyond their limits."""
    running = num_running(speed, mix, rate)
    if math.isinf(running) or running > MOST_RUNNING * speed.max_running:
        return 1.0
    prompt_s = mix.prompt_tokens * (speed.token_s + running * speed.seq_s)
    left_s = ttft_s - speed.start_s - running * speed.start_seq_s
    if left_s < 0.0 or rate * prompt_s >= MOST_BUSY:
        return 1.0
    if not prompt_s:
        return 0.0
    return _beyond(left_s / prompt_s, rate * prompt_s, max(OPEN * num_workers, 1.0), mix.spread)


def _beyond(times: float, busy: float, num: float, spread: float) -> float:
    """Chance that a prompt is computed later than so many times its mean, in a queue with `num` servers."""
    waits = busy ** (math.sqrt(2.0 * (num + 1.0)) - 1.0)
    wait = (1.0 + spread) / 2.0 / (num * (1.0 - busy))  # of those that wait
    sigma = math.sqrt(math.log1p(spread))
    late = 0.0
    for point in POINTS:
        left = times - math.exp(sigma * point - sigma * sigma / 2.0)
        late += waits * math.exp(-left / wait) if left > 0.0 else 1.0
    return late / len(POINTS)
