"""Traces of real traffic, as jobs for a fleet in virtual time.

mooncake   12,031 requests of an hour; prompts are known as chained hashes of 512 tokens, and are made up here
agent      402 turns of coding agents with their texts, tokenized by the bundled tokenizer
"""

import json
import lzma
import os
import random
from array import array
from collections.abc import Iterator
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.core.tokenizer import Tokenizer
from loadtest.virtual import Job

TRACES = Path(os.environ.get("TRACES", Path(__file__).parents[3] / "shared" / "data"))
HASHED_TOKENS = 512
VOCABULARY = 8192


def mooncake(path: Path, *, speed: float = 1.0, limit: int | None = None, seed: int = 1) -> Iterator[Job]:
    """`speed`: so many times as fast as it was recorded. Those that came in one recorded moment (their clock
    tells three seconds) are spread over it. A second turn begins with all of an earlier prompt."""
    rng = random.Random(seed)
    known: set[int] = set()
    with lzma.open(path, "rt") as lines:
        for number, line in enumerate(lines):
            if number == limit:
                return
            asked = json.loads(line)
            hashes, length = asked["hash_ids"], asked["input_length"]
            tokens = array("I")
            for name in hashes:
                tokens.extend(_block(name))
            at = (asked["timestamp"] / 1000 + rng.random() * 3.0) / speed
            turn = 2 if len(hashes) > 2 and hashes[-2 if length % HASHED_TOKENS else -1] in known else 1
            known.update(hashes[1:])
            yield Job(at, tokens[:length], max(asked["output_length"], 1), turn)


def _block(name: int) -> "array[int]":
    """Tokens that no other hash has."""
    tokens = array("I", [0]) * HASHED_TOKENS
    for i in range(HASHED_TOKENS):
        tokens[i] = (name * 2_654_435_761 + i * 40_503) % VOCABULARY
    tokens[0], tokens[1] = name % VOCABULARY, name // VOCABULARY
    return tokens


def agent(path: Path, *, copies: int = 1, speed: float = 1.0, seed: int = 1) -> Iterator[Job]:
    """`copies` of each session, in each of which the prompts differ from their first token on; they begin at
    random within the trace. An answer is what was recorded, so that the next turn finds it."""
    rng, tokenizer = random.Random(seed), Tokenizer.load(bundled_tokenizer() / "tokenizer.json")
    sessions: dict[str, list[tuple[float, array[int], array[int]]]] = {}
    with lzma.open(path, "rt") as lines:
        for asked in map(json.loads, lines):
            prompt, answer = (
                array("I", tokenizer.encode(asked[name], False)) for name in ("input", "output")
            )
            turns = sessions.setdefault(asked["session_id"], [])
            turns.append((asked["timestamp"] / 1e6, prompt, answer))
    begin = min(turns[0][0] for turns in sessions.values())
    end = max(turns[-1][0] for turns in sessions.values())
    for copy in range(copies):
        for turns in sessions.values():
            late = turns[0][0] - begin if not copy else rng.random() * (end - begin)
            for number, (at, prompt, answer) in enumerate(turns, 1):
                tokens = array("I", [copy]) + prompt
                yield Job((at - turns[0][0] + late) / speed, tokens, len(answer) or 1, number, answer or [0])
