"""Work slices: no loop with a length that a peer sets runs longer than one before others have their turn.

Peers are clients, workers, agents, Redis, DNS and API servers. Their bytes become many (events, chunks,
frames, numbers) in one of three ways, and each has its slices:

    reads of connections    `paced_reads.py`: fed in turns of a slice; of HTTP/2 each frame and each message
                            (`server/http2/grpc_connection.py`)
    KV events               `ingest/time_slices.py`: one slice of all feeds, then a rest
    a body that is whole    decoded in steps, which `in_slices` runs

What takes less than a slice at its largest has a limit on its size instead. tests/hostile/test_peer_work.py
lists each place where a peer's bytes are decoded, with that limit, and counts what the largest input takes.
"""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import Final, TypeVar

Result = TypeVar("Result")

SLICE_S: Final = 0.002
"""Seconds after which others have their turn: one step more than that, which takes less than as long."""


async def in_slices(steps: Generator[object, None, Result]) -> Result:
    """Run steps to their end, a slice in each iteration of the event loop; returns and raises what they
    do."""
    while True:
        end = perf_counter() + SLICE_S
        while perf_counter() < end:
            try:
                next(steps)
            except StopIteration as done:
                result: Result = done.value
                return result
        await asyncio.sleep(0)
