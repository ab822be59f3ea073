"""Metrics that a simulated engine publishes, and the replay of its events."""

from typing import Any

import zmq.asyncio
from aiohttp import ClientSession

from engines.sim.wire import END_OF_REPLAY, seq_bytes
from engines.vllm import Vllm


async def metrics_of(http: ClientSession, url: str) -> dict[str, float]:
    async with http.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


async def replayed(endpoint: str) -> list[Any]:
    """All batches so far, read by our adapter."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        await dealer.send_multipart([b"", seq_bytes(0)])
        batches = []
        while (frames := await dealer.recv_multipart())[2] != END_OF_REPLAY:
            batches.append(Vllm().decode_replay(frames))
        return batches
