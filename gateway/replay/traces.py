"""Traces of real traffic, as jobs for a fleet in virtual time.

mooncake   prompts are known as chained hashes of 512 tokens, and are made up here
agent      turns of coding agents with their texts, tokenized here
"""

import lzma
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from gateway.replay.job import HashedPrompt, Job

HASHED_TOKENS = 512
MOMENT_S = 3.0
"""What Mooncake's clock tells: requests of one recorded moment are spread over it."""

Encode = Callable[[str], Sequence[int]]


class _Asked(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _Turn(msgspec.Struct):
    session_id: str
    timestamp: float
    input: str
    output: str


def mooncake(path: Path, *, speed: float = 1.0, limit: int | None = None, seed: int = 1) -> Iterator[Job]:
    """`speed`: so many times as fast as it was recorded. A second turn begins with all of an earlier
    prompt."""
    rng, decode = random.Random(seed), msgspec.json.Decoder(_Asked).decode
    known: set[int] = set()
    with lzma.open(path) as lines:
        for number, line in enumerate(lines):
            if number == limit:
                return
            asked = decode(line)
            hashes, length = asked.hash_ids, asked.input_length
            at = (asked.timestamp / 1000 + rng.random() * MOMENT_S) / speed
            turn = 2 if len(hashes) > 2 and hashes[-2 if length % HASHED_TOKENS else -1] in known else 1
            known.update(hashes[1:])
            prompt = HashedPrompt(array("Q", hashes), HASHED_TOKENS, length)
            yield Job(at, prompt, max(asked.output_length, 1), turn)


def agent(path: Path, encode: Encode, *, copies: int = 1, speed: float = 1.0, seed: int = 1) -> Iterator[Job]:
    """`copies` of each session, in each of which the prompts differ from their first token on; they begin at
    random within the trace. An answer is what was recorded, so that the next turn finds it."""
    rng, decode = random.Random(seed), msgspec.json.Decoder(_Turn).decode
    sessions: dict[str, list[tuple[float, array[int], array[int]]]] = {}
    with lzma.open(path) as lines:
        for asked in map(decode, lines):
            prompt, answer = array("I", encode(asked.input)), array("I", encode(asked.output))
            sessions.setdefault(asked.session_id, []).append((asked.timestamp / 1e6, prompt, answer))
    begin = min(turns[0][0] for turns in sessions.values())
    end = max(turns[-1][0] for turns in sessions.values())
    for copy in range(copies):
        for name, turns in sessions.items():
            late = turns[0][0] - begin if not copy else rng.random() * (end - begin)
            for number, (at, prompt, answer) in enumerate(turns, 1):
                tokens = array("I", [copy]) + prompt
                at_s = (at - turns[0][0] + late) / speed
                yield Job(at_s, tokens, len(answer) or 1, number, answer or [0], f"{name}/{copy}")
