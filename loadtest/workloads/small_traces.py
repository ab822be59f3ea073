"""Traces of a few requests, for smoke runs and tests: in the format of the recorded ones."""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512


def write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with lzma.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def conversations(num: int) -> list[dict[str, Any]]:
    """Two turns each: the second one is the first, and a piece that does not fill a block."""
    found = []
    for number in range(num):
        for turn in (1, 2):
            hashes = [0, *range(100 * number + 1, 100 * number + 6 + turn)]
            length = BLOCK_TOKENS * len(hashes) - 7
            at = 1000 * (number + 40 * (turn - 1))
            found.append({"timestamp": at, "input_length": length, "output_length": 9, "hash_ids": hashes})
    return sorted(found, key=lambda asked: int(asked["timestamp"]))


def sessions(num: int) -> list[dict[str, Any]]:
    """Sessions of agents, two steps each."""
    return [
        {
            "session_id": f"s{number}",
            "timestamp": (number + 20 * turn) * 1e6,
            "input": f"session {number}: " + "a step of the work\n" * 400 * (turn + 1),
            "output": "done",
        }
        for number in range(num)
        for turn in range(2)
    ]
