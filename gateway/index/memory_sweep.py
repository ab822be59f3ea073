"""Background task that sweeps an index between the event loop's other work."""

import asyncio

from gateway.index.base import Index

SWEEP_INTERVAL_S = 0.2
"""Blocks waiting for a sweep only cost memory, or a hit in a shared tier that a worker has just come to."""


async def keep_swept(index: Index, interval_s: float = SWEEP_INTERVAL_S) -> None:
    while True:
        await asyncio.sleep(interval_s)
        while index.sweep():  # noqa: ASYNC110 - it is work, not waiting
            await asyncio.sleep(0)
