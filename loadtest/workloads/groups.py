"""Groups of users who share a long prompt: the shape of llm-d's benchmark of its scheduler.

150 groups, each with a prefix of 6,000 tokens, and 5 questions of 1,200 tokens behind it; answers of 1,000
tokens. Requests come at random (Poisson) at a rate that climbs.
"""

import random
from array import array
from collections.abc import Iterator, Sequence

from gateway.replay.job import HashedPrompt, ReplayJob

NUM_GROUPS, NUM_QUESTIONS = 150, 5
PREFIX, QUESTION, ANSWER = 6000, 1200, 1000
BLOCK = 400
"""Tokens of a hashed block here: both lengths are multiples of it."""


def groups(rates: Sequence[float], seconds: float, seed: int = 1) -> Iterator[ReplayJob]:
    """Requests of `seconds` at each rate."""
    rng, at, end = random.Random(seed), 0.0, 0.0
    asked: set[int] = set()
    for rate in rates:
        end += seconds
        while True:
            at += rng.expovariate(rate)
            if at >= end:
                at = end
                break
            group, question = rng.randrange(NUM_GROUPS), rng.randrange(NUM_QUESTIONS)
            turn = 2 if group in asked else 1
            asked.add(group)
            yield ReplayJob(at, prompt_of(group, question), ANSWER, turn)


def prompt_of(group: int, question: int) -> HashedPrompt:
    prefix = [group << 16 | number for number in range(PREFIX // BLOCK)]
    behind = [group << 16 | 1 << 15 | question << 8 | number for number in range(QUESTION // BLOCK)]
    return HashedPrompt(array("Q", prefix + behind), BLOCK, PREFIX + QUESTION)
