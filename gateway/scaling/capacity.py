"""The number of workers that serve a rate of requests within a TTFT objective, by their learnt speed.

With n workers that batch continuously, and requests of P prompt tokens to compute and O output tokens each
that come at a rate r to each of them, a worker has

    running   N = r · O · step_s / (1 - r · (P · harm_s + O · step_seq_s))
    prompts   s = P · (token_s + N · seq_s) each, and busy = r · s
    TTFT      start_s + N · start_seq_s + that of a queue with n · OPEN servers, arrivals at random, and
              prompts of log-normal length

since the router sends each request to where it is answered first, as a common queue does, but also to where
its prefix is. At most LATE of the TTFTs are later than the objective, and N is bounded by the concurrency
limit and by the KV cache, of which reports of workers show what a running answer takes. The chance to wait at
all is Sakasegawa's, which knows fractions of servers, the mean wait Allen's and Cunneen's.
`make bench-autoscale` compares the numbers with the smallest fleets that meet the objective in the replay.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

from gateway.core.speed import Speed

LATE = 0.1
"""Share of requests that may be late: the objective is for the 90th percentile."""
MOST_BUSY = 0.9
"""Share of time for prompts, and of the steps for answers, beyond which a worker has no reserve."""
SIGMAS_RUNNING = 1.28
"""Standard deviations of the number of running answers, and of their KV caches, that the limits leave room
for: then one request in ten waits for answers to end."""
OPEN = 0.5
"""Share of the workers that a request may go to as to a common queue; the caches of the others count too much
or too little. Fitted to the replay."""
MOST_IDLE, UNREACHABLE = 0.9, 2.0
"""Where an idle worker takes more than that share of the objective, so many times its TTFT stands in for
it."""
ROUNDS = 24
"""Halvings of an interval: to a ten-millionth."""
POINTS = tuple(NormalDist().inv_cdf((number + 0.5) / 32) for number in range(32))
"""Logarithms of lengths at equally likely points, in standard deviations from the median."""


class Mix(NamedTuple):
    """A mean request: prompt tokens that are computed, output tokens, the variance of the first over its
    square, and the share of a worker's KV cache that it takes while it runs."""

    prompt_tokens: float
    output_tokens: float
    spread: float = 1.0
    kv_share: float = 0.0


def num_running(speed: Speed, mix: Mix, rate: float) -> float:
    """Answers that run at once, on average; infinite beyond what the worker can do."""
    share = rate * (mix.prompt_tokens * speed.harm_s + mix.output_tokens * speed.step_seq_s)
    if share >= MOST_BUSY:
        return math.inf
    return rate * mix.output_tokens * speed.step_s / (1.0 - share)


def late_share(speed: Speed, mix: Mix, rate: float, objective_s: float, num_workers: float = 1.0) -> float:
    """Share of TTFTs beyond the objective at this rate of requests to each worker; 1 beyond its limits."""
    running = num_running(speed, mix, rate)
    if math.isinf(running) or _at_most(running) > min(speed.max_running, 1.0 / (mix.kv_share or 1e-9)):
        return 1.0
    prompt_s = mix.prompt_tokens * (speed.token_s + running * speed.seq_s)
    left_s = objective_s - speed.start_s - running * speed.start_seq_s
    if left_s < 0.0 or rate * prompt_s >= MOST_BUSY:
        return 1.0
    if not prompt_s:
        return 0.0
    return _beyond(left_s / prompt_s, rate * prompt_s, max(OPEN * num_workers, 1.0), mix.spread)


def _at_most(running: float) -> float:
    """Answers that run at once nine times of ten; they are as variable as exponential ones."""
    return running + SIGMAS_RUNNING * math.sqrt(2.0 * running)


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


def reachable_s(speed: Speed, mix: Mix, objective_s: float) -> float:
    """The objective, or a longer one where not even an idle worker meets it."""
    if late_share(speed, mix, 0.0, MOST_IDLE * objective_s) <= LATE:
        return objective_s
    sigma = math.sqrt(math.log1p(mix.spread))
    longest = math.exp(sigma * NormalDist().inv_cdf(1.0 - LATE) - sigma * sigma / 2.0)
    return UNREACHABLE * (speed.start_s + longest * mix.prompt_tokens * speed.token_s)


def sustainable_rate(speed: Speed, mix: Mix, objective_s: float, num_workers: float = 1.0) -> float:
    """Requests per second that each of so many workers serves within the objective."""
    objective_s = reachable_s(speed, mix, objective_s)
    low, high = 0.0, 1e-3
    while high < 1e6 and late_share(speed, mix, high, objective_s, num_workers) <= LATE:
        low, high = high, 2.0 * high
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        if late_share(speed, mix, middle, objective_s, num_workers) <= LATE:
            low = middle
        else:
            high = middle
    return low


def workers_needed(speed: Speed, mix: Mix, objective_s: float, rate: float) -> float:
    """Workers that serve this rate of requests within the objective; a part of one for little."""
    low, high = 0.0, rate / sustainable_rate(speed, mix, objective_s)  # one alone does less than one of many
    objective_s = reachable_s(speed, mix, objective_s)
    for _ in range(ROUNDS if rate else 0):
        middle = (low + high) / 2.0
        if late_share(speed, mix, rate / middle, objective_s, middle) <= LATE:
            high = middle
        else:
            low = middle
    return high
