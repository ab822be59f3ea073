"""The rate of requests that one worker can serve within a TTFT objective, by its learnt speed.

With requests at a rate r, of P prompt tokens to compute and O output tokens each, a worker that batches
continuously has

    running   N = r · O · step_s / (1 - r · (P · harm_s + O · step_seq_s))
    prompts   s = P · (token_s + N · seq_s) each, and busy = r · s
    TTFT      p90 = start_s + N · start_seq_s + ln(10) · s / (1 - busy)

as in a queue with arrivals at random and prompts as variable as exponential ones. A router that chooses by
load does better, so the estimate is cautious.
"""

import math
from typing import NamedTuple

from gateway.core.speed import Speed

LATE = 0.1
"""Share of requests that may be late: the objective is for the 90th percentile."""
MOST_BUSY = 0.9
"""Share of time for prompts, and of the steps for answers, beyond which a worker has no reserve."""
MOST_RUNNING = 0.8
"""Share of the concurrency limit that runs on average: more would queue for answers to end."""
UNREACHABLE = 2.0
"""Where an idle worker misses the objective, so many times its TTFT stands in for it."""


class Mix(NamedTuple):
    """A mean request: prompt tokens that are computed, and output tokens."""

    prompt_tokens: float
    output_tokens: float


def num_running(speed: Speed, mix: Mix, rate: float) -> float:
    """Answers that run at once, on average; infinite beyond what the worker can do."""
    share = rate * (mix.prompt_tokens * speed.harm_s + mix.output_tokens * speed.step_seq_s)
    if share >= MOST_BUSY:
        return math.inf
    return rate * mix.output_tokens * speed.step_s / (1.0 - share)


def ttft_p90_s(speed: Speed, mix: Mix, rate: float) -> float:
    """The 90th percentile of the TTFT at this rate of requests to one worker; infinite beyond its limits."""
    running = num_running(speed, mix, rate)
    if running > MOST_RUNNING * speed.max_running or math.isinf(running):
        return math.inf
    prompt_s = mix.prompt_tokens * (speed.token_s + running * speed.seq_s)
    busy = rate * prompt_s
    if busy >= MOST_BUSY:
        return math.inf
    return speed.start_s + running * speed.start_seq_s - math.log(LATE) * prompt_s / (1.0 - busy)


def reachable_s(speed: Speed, mix: Mix, objective_s: float) -> float:
    """The objective, or a longer one where not even an idle worker meets it."""
    idle_s = ttft_p90_s(speed, mix, 0.0)
    return objective_s if idle_s < objective_s else UNREACHABLE * idle_s


def sustainable_rate(speed: Speed, mix: Mix, objective_s: float) -> float:
    """Requests per second that one worker serves with a 90th percentile of the TTFT within the objective."""
    objective_s = reachable_s(speed, mix, objective_s)
    low, high = 0.0, 1e-3
    while high < 1e6 and ttft_p90_s(speed, mix, high) <= objective_s:
        low, high = high, 2.0 * high
    for _ in range(30):
        middle = (low + high) / 2.0
        if ttft_p90_s(speed, mix, middle) <= objective_s:
            low = middle
        else:
            high = middle
    return low
