"""Short answers to short questions behind shared instructions, at a share of what a fleet's seats can take.

A hundred instructions of 1,024 tokens, some much more popular than others; behind each a question of 32 to
256 tokens of its own, and an answer of 20 to 120 tokens. Requests come at random (Poisson).
"""

import random
from array import array
from collections.abc import Iterator
from itertools import accumulate

from gateway.replay.job import HashedPrompt, ReplayJob
from gateway.replay.profile import Profile

NUM_INSTRUCTIONS, BLOCK, INSTRUCTION_BLOCKS = 100, 32, 32
QUESTION_BLOCKS, ANSWER = (1, 8), (20, 120)


def rate_of(profile: Profile, share: float) -> float:
    """Requests per second at one worker that keep `share` of its seats busy: with all of them taken, an
    answer takes its steps and the questions that are computed meanwhile."""
    seats = profile.max_num_seqs
    step_s = profile.step_s + (seats - 1) * profile.seq_s
    question_s = sum(QUESTION_BLOCKS) / 2 * BLOCK / profile.prefill_tokens_per_s
    return share * seats / (sum(ANSWER) / 2 * step_s + seats * question_s)


def short_answers(rate: float, seconds: float, seed: int = 1) -> Iterator[ReplayJob]:
    rng, at, number = random.Random(seed), 0.0, 0
    weights = list(accumulate(1 / (1 + i) ** 0.8 for i in range(NUM_INSTRUCTIONS)))
    asked: set[int] = set()
    while (at := at + rng.expovariate(rate)) < seconds:
        number += 1
        (group,) = rng.choices(range(NUM_INSTRUCTIONS), cum_weights=weights)
        turn = 2 if group in asked else 1
        asked.add(group)
        own = [1 << 40 | number << 8 | i for i in range(rng.randint(*QUESTION_BLOCKS))]
        blocks = array("Q", [*(group << 8 | i for i in range(INSTRUCTION_BLOCKS)), *own])
        yield ReplayJob(at, HashedPrompt(blocks, BLOCK, BLOCK * len(blocks)), rng.randint(*ANSWER), turn)
