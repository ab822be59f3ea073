"""`make fuzz`: broken requests and answers for SECONDS (600), four fifths of it without sockets: HTTP/2,
messages of ext_proc and their streams, and HTTP/1.1.

The seed is printed; SEED=… begins with the same inputs again. An input that fails is made small, printed
and written to `.cache/fuzz/`; `python -m tests.fuzz FILE` tries it again.
"""

import asyncio
import hashlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.fuzz import ext_proc, ext_proc_messages, http2, parsers, sockets
from tests.fuzz.inputs import Input, make, smaller

FOLDER = Path(".cache/fuzz")
T = TypeVar("T")


async def main() -> int:
    if len(sys.argv) > 1:
        given = Input.from_json(Path(sys.argv[1]).read_text())  # noqa: ASYNC240  once, before all else
        parsers.check(given)
        print("without sockets it passes")
        return await _alone(given)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    seconds = float(os.environ.get("SECONDS") or 600)
    print(f"seed {seed}: SEED={seed} make fuzz tries the same again", flush=True)
    return (
        in_memory("HTTP/2", http2.make, http2.check, seed, seconds / 5)
        or in_memory("ext_proc", ext_proc_messages.make, ext_proc_messages.check, seed, seconds / 5)
        or over_ext_proc(seed, seconds / 5)
        or await without_sockets(seed, seconds / 5)
        or await with_sockets(seed, seconds / 5)
    )


def in_memory(
    name: str, make: Callable[[int, int], T], check: Callable[[T], None], seed: int, seconds: float
) -> int:
    deadline, number = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        given = make(seed, number)
        try:
            check(given)
        except Exception as exc:  # noqa: BLE001  whatever it is, it is what we look for
            print(f"FAILS: {name} input {number} of seed {seed}: {type(exc).__name__}: {exc}\n{given!r}")
            return 1
        number += 1
    print(f"{number} inputs of {name}: none fails", flush=True)
    return 0


def over_ext_proc(seed: int, seconds: float) -> int:
    deadline, number = time.monotonic() + seconds, 0
    logging.getLogger("kvgate").setLevel(logging.CRITICAL)
    while time.monotonic() < deadline:
        try:
            ext_proc.run(seed, number, ext_proc.WORLD_FOR)
        except AssertionError as exc:
            print(f"FAILS: {exc}")
            return 1
        number += ext_proc.WORLD_FOR
    print(f"{number} streams of ext_proc: none fails", flush=True)
    return 0


async def without_sockets(seed: int, seconds: float) -> int:
    deadline, number = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        given = make(seed, number)
        if error := fault(given):

            async def fails(shorter: Input) -> bool:
                return fault(shorter) is not None

            return report(error, await smaller(given, fails))
        number += 1
    print(f"{number} inputs without sockets: none fails", flush=True)
    return 0


def fault(given: Input) -> str | None:
    try:
        parsers.check(given)
    except Exception as exc:  # noqa: BLE001  whatever it is, it is what we look for
        return f"{type(exc).__name__}: {exc}"
    return None


async def with_sockets(seed: int, seconds: float) -> int:
    try:
        number = await sockets.fuzz(seed, seconds)
    except sockets.Found as found:
        return report(str(found), found.given)
    print(f"{number} inputs over sockets: none fails, nothing is left open or booked", flush=True)
    return 0


async def _alone(given: Input) -> int:
    async with sockets.running(*sockets.FLAGS) as bench:
        pipeline = sockets.Pipeline("a")
        bench.workers.append(await pipeline.worker.start())
        await bench.gateway.join(pipeline.worker)
        await pipeline.run(bench, given)
    print("over sockets it passes")
    return 0


def report(error: str, given: Input | None) -> int:
    print(f"FAILS: {error}")
    if given:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{hashlib.sha256(given.to_json().encode()).hexdigest()[:12]}.json"
        path.write_text(given.to_json())
        print(f"client sends  {given.data!r} cut at {given.cuts}, then {given.leaving}")
        print(f"worker sends  {given.answer!r} cut at {given.answer_cuts}, closes: {given.closes}")
        print(f"try it again  python -m tests.fuzz {path}")
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
