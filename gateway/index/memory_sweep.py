"""Drives an index's `sweep` between everything else that the event loop has to do."""

import asyncio

from gateway.index.base import Index

SWEEP_INTERVAL_S = 0.2
"""What is to be swept is invisible and only costs memory."""


async def keep_swept(index: Index, interval_s: float = SWEEP_INTERVAL_S) -> None:
    while True:
        await asyncio.sleep(interval_s)
        while index.sweep():  # noqa: ASYNC110 - it is work, not waiting
            await asyncio.sleep(0)
