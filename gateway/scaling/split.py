"""The split of workers between prefill and decode at which a model serves most requests.

A request computes P prompt tokens, wherever, and O output tokens. Of R requests per second, p prefill workers
compute as many prompts as meet the TTFT objective, less the time in which blocks are handed over; the decode
workers compute the rest themselves, as the gateway decides them (`policies/disaggregation.py`), and all
answers. What `capacity` says of one decode worker with those prompts gives the highest R of the split:

    R = prompts of p prefill workers + prompts of the others      within objectives, running limit and cache

So the advice does not depend on the split at which the traffic was seen: there, decode workers may compute
most prompts because prefill workers are few. Decode workers that answer nothing alone compute none.

The advised numbers change only where others serve more, by GAIN, at both ends of the interval that so many
requests leave for the ratio of P to O.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.speed import Speed
from gateway.core.value import astuple
from gateway.scaling.capacity import Mix, Objectives, highest, meets, reachable, sustainable_rate

SIGMAS = 1.645
"""Standard errors on each side of an interval of 90 %."""
GAIN = 0.03
"""Share of more requests for which the advised numbers change."""
STEPS = 14
"""Steps of a search: to a thousandth."""
EQUAL = 0.001
"""Relative difference of rates that are equal."""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
LEAST_S = 0.001
"""Least time that a hand-over leaves of the TTFT objective."""


class WorkerSplit(NamedTuple):
    """Workers by role."""

    prefill: float
    decode: float

    @property
    def total(self) -> float:
        return self.prefill + self.decode


Serves = Callable[[WorkerSplit], float]
"""Requests per second that a split serves within the objectives."""


@dataclass(frozen=True, slots=True)
class SplitState:
    """A model with both roles: its workers that are up, the speed of one of each role, and the mean request.

    `mix` has the prompt tokens that both roles compute together, and is the mean of `num_requests`. Handing
    over the blocks of a prompt takes `handoff_s`. `is_bound`: decode workers answer nothing alone."""

    model: str
    num_up: WorkerSplit
    prefill: Speed
    decode: Speed
    mix: Mix
    num_requests: float
    handoff_s: float = 0.0
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class SplitAdvice:
    """Advice for a model's split. `share` of prefill workers serves most requests, with an interval of 90 %.
    `workers` are whole numbers for as many workers as are up, None where fewer than two are; they serve
    `requests_per_s` within the objectives, those that are up `up_requests_per_s`."""

    model: str
    share: float
    low: float
    high: float
    workers: WorkerSplit | None
    requests_per_s: float
    up_requests_per_s: float


def advise_split(state: SplitState, objectives: Objectives, kept: WorkerSplit | None = None) -> SplitAdvice:
    """Advice for the split; `kept` was advised before."""
    factor = math.exp(SIGMAS * math.sqrt(2.0 / max(state.num_requests, 1.0)))
    mixes = [
        Mix(state.mix.prompt_tokens * each, state.mix.output_tokens) for each in (1.0, 1 / factor, factor)
    ]
    serves, *others = [rates(state, mix, objectives) for mix in mixes]
    share, *ends = [best_share(each) for each in (serves, *others)]
    up = state.num_up
    workers = _whole((serves, *others), share, up, kept) if up.total >= 2 else None
    return SplitAdvice(
        state.model,
        share,
        min(share, *ends),
        max(share, *ends),
        workers,
        serves(workers) if workers else 0.0,
        serves(up) if up.prefill and up.decode else 0.0,
    )


def rates(state: SplitState, mix: Mix, objectives: Objectives) -> Serves:
    """Requests per second of each split, if they are such."""
    ttft_s = max(objectives.ttft_s - state.handoff_s, LEAST_S)
    decode = _with_harm(state.decode)
    prompts_per_s = sustainable_rate(state.prefill, Mix(mix.prompt_tokens, 0.0), Objectives(ttft_s), STEPS)
    reached = reachable(decode, mix, objectives)

    def serves(split: WorkerSplit) -> float:
        most = split.prefill * prompts_per_s

        def is_met(rate: float) -> bool:
            share = max(1.0 - most / rate, 0.0)
            if share and state.is_bound:
                return False
            return meets(decode, mix, rate / split.decode, reached, share)

        return highest(is_met, STEPS)

    return serves


def _with_harm(speed: Speed) -> Speed:
    """The speed, where a prompt token delays answers by at least the time of its computation: how much was
    not seen where prefill workers compute nearly all prompts."""
    fields = dict(zip(Speed.__match_args__, astuple(speed), strict=True))
    return Speed(**fields | {"harm_s": max(speed.harm_s, speed.token_s)})


def best_share(serves: Serves) -> float:
    """The share of prefill workers that serves most, by golden section: the rate rises to it and falls. Of
    equal ones the lowest: decode workers can compute prompts, and prefill workers answer nothing."""

    def at(share: float) -> float:
        return serves(WorkerSplit(share, 1.0 - share))

    low, high = 0.0, 1.0
    one, other = 1.0 - GOLDEN, GOLDEN
    at_one, at_other = at(one), at(other)
    for _ in range(STEPS):
        if at_one >= (1.0 - EQUAL) * at_other:
            high, other, at_other = other, one, at_one
            one = high - GOLDEN * (high - low)
            at_one = at(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + GOLDEN * (high - low)
            at_other = at(other)
    return (low + high) / 2.0


def _whole(
    all_serve: Sequence[Serves], share: float, up: WorkerSplit, kept: WorkerSplit | None
) -> WorkerSplit:
    """The best whole numbers, at least one of each role; those advised before, or those that are up, unless
    the best ones serve more in all cases, which are what the traffic may be."""
    total, serves = int(up.total), all_serve[0]
    near = {min(max(num, 1), total - 1) for num in (math.floor(share * total), math.ceil(share * total))}
    best = max((WorkerSplit(num, total - num) for num in sorted(near)), key=serves)
    if kept is None or kept.total != total:
        kept = up
    if not (kept.prefill and kept.decode):
        return best
    return best if all(each(best) > (1.0 + GAIN) * each(kept) for each in all_serve) else kept
