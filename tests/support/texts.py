"""Conversations that are the same with every Python, for tests with simulated engines.

The text of the benchmarks, the standard library, is another in each version, with pieces of many more tokens
than others: a conversation may then exceed the model's length, or evict other blocks than the test needs.
"""

import json
import random
from functools import cache

from gateway.app import bundled_tokenizer
from loadtest.workloads.conversations import Conversations

NUM_WORDS = 500_000
"""So many that the pieces of a test do not overlap."""


@cache
def plain_text() -> str:
    """Short words of the bundled vocabulary in any order, each a token: 3.6 characters per token, as in prose
    and code."""
    vocabulary = json.loads((bundled_tokenizer() / "tokenizer.json").read_text(encoding="utf-8"))["model"][
        "vocab"
    ]
    spaced = [entry[1:] for entry in vocabulary if entry.startswith("\u0120")]
    words = [word for word in spaced if 2 <= len(word) <= 3 and word.isascii() and word.isalpha()]
    return " ".join(random.Random(1).choices(words, k=NUM_WORDS))


def conversations(seed: int, turn_chars: int = 300) -> Conversations:
    """Conversations of the model `m`."""
    return Conversations("m", seed, turn_chars=turn_chars, text=plain_text())
