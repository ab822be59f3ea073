"""Prompts of token ids: decisions of a model, so many open at once."""

import random
from collections.abc import Iterator

MODEL = "m"
NUM_TOKENS = 256
NUM_OPEN = 8
VOCABULARY = 120_000


def prompts(seed: int = 1) -> Iterator[list[int]]:
    """Prompts that share no block with one another."""
    rng = random.Random(seed)
    while True:
        yield [rng.randrange(VOCABULARY) for _ in range(NUM_TOKENS)]
