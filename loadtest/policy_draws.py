"""Random search for traffic on which the default policy loses: rows of parameters that are drawn by seed and
number.

A draw repeats by its name: `ROWS=draw-7-31` is number 31 of seed 7.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.replay.job import HashedPrompt, ReplayJob
from gateway.replay.profile import H100_8B, H100_70B, Profile
from loadtest.policy_rows import SLO_8B, SLO_70B, PolicyScenario
from loadtest.workloads import mixes

SECONDS, LEAST = 12.0, 100
"""A draw lasts so long, or until there were so many arrivals."""
Kind = tuple[Callable[..., Iterable[ReplayJob]], Callable[[random.Random], dict[str, Any]]]


def _hot(rng: random.Random) -> dict[str, Any]:
    return {
        "prefix": round(rng.uniform(1000, 80_000)),
        "share": rng.uniform(0.3, 1.0),
        "own": (50, rng.randint(200, 4000)),
        "answer": (5, rng.randint(20, 600)),
        "every_s": rng.choice([3.0, 10.0, 1e9]),
    }


def _chats(rng: random.Random) -> dict[str, Any]:
    return {
        "prefixes": rng.choice([1, 3, 20]),
        "prefix": round(rng.uniform(512, 30_000)),
        "first_mean": rng.randint(500, 12_000),
        "added": (100, rng.randint(300, 5000)),
        "answer": (10, rng.randint(50, 800)),
        "turns": rng.uniform(2, 20),
        "think_s": rng.uniform(0.5, 5),
        "on_s": rng.choice([0.0, 3.0]),
    }


def _fan_out(rng: random.Random) -> dict[str, Any]:
    least = rng.randint(2000, 30_000)
    return {
        "document": (least, 2 * least),
        "questions": rng.randint(2, 16),
        "within_s": rng.uniform(0.01, 2.0),
        "own": rng.randint(50, 2000),
        "answer": (10, rng.randint(50, 600)),
    }


def _unique(rng: random.Random) -> dict[str, Any]:
    return {
        "mean": rng.randint(100, 8000),
        "sigma": rng.uniform(0.2, 1.5),
        "answer": rng.randint(10, 500),
        "giants": rng.choice([0.0, 0.01, 0.05]),
    }


KINDS: dict[str, Kind] = {
    "hot": (mixes.hot_prompt, _hot),
    "chats": (mixes.chats, _chats),
    "fan_out": (mixes.fan_out, _fan_out),
    "unique": (mixes.unique, _unique),
}


def draw(seed: int, number: int) -> PolicyScenario:
    """Row of traffic that asks for 30 to 110 % of what its fleet can take, each block computed once."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(sorted(KINDS))
    jobs, parameters = KINDS[kind][0], KINDS[kind][1](rng)
    is_large, num_workers = rng.random() < 0.3, rng.choice([4, 8, 16])
    profile, slo = (H100_70B, SLO_70B) if is_large else (H100_8B, SLO_8B)
    rate_name = "starts" if kind == "chats" else "rate"
    play = partial(_played, jobs, rate_name, parameters)
    rate = rng.uniform(0.3, 1.1) * num_workers / _seconds_each(play, profile)
    arrivals = partial(play, rate=rate, seconds=max(SECONDS, LEAST / rate))
    row = PolicyScenario(f"draw-{seed}-{number}", arrivals, profile=profile, slo=slo)
    return replace(row, num_workers=num_workers)


def _played(
    jobs: Callable[..., Iterable[ReplayJob]],
    rate_name: str,
    parameters: dict[str, Any],
    seed: int,
    rate: float = 1.0,
    seconds: float = SECONDS,
) -> Iterable[ReplayJob]:
    return jobs(seed, **{rate_name: rate, "seconds": seconds}, **parameters)


def _seconds_each(play: Callable[..., Iterable[ReplayJob]], profile: Profile) -> float:
    """Seconds of one worker that an arrival takes, where each block is computed once and answers run among
    32."""
    seen: set[int] = set()
    total, jobs = 0.0, list(play(1, rate=1.0, seconds=100.0))
    for job in jobs:
        hashes = job.prompt.hashes if isinstance(job.prompt, HashedPrompt) else ()
        num_new = min(sum(block not in seen for block in hashes) * mixes.BLOCK, job.num_tokens)
        seen.update(hashes)
        total += num_new / profile.prefill_tokens_per_s + job.num_output * (
            profile.step_s / 32 + profile.seq_s
        )
    return total / 100.0
