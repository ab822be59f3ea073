"""An agent beside a real engine with a replay buffer of two batches."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.agent.config import AgentConfig
from gateway.agent.sidecar import Sidecar
from gateway.app import Gateway
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from tests.support.patience import until
from tests.vllm.engine import VllmWorker

pytestmark = pytest.mark.vllm


async def test_gateway_started_late_knows_the_blocks_that_the_agent_knows(
    start_vllm: Callable[..., VllmWorker],
) -> None:
    worker = start_vllm(replay_buffer=2, num_gpu_blocks_override=60, max_model_len=1024)
    await asyncio.to_thread(worker.wait_ready)
    agent = Sidecar(AgentConfig(engine_url=worker.url, listen="127.0.0.1:0"), "kvgate test")
    await agent.start()
    try:
        await until(lambda: [member.stream for member in agent.fleet] == [StreamState.EXACT])
        for i in range(8):  # more than the cache has room for: blocks are evicted
            prompt = [1000 + i, *range(2, 400)]
            await asyncio.to_thread(worker.complete, prompt, max_tokens=40)
        (rank,) = agent.store.ranks.values()
        await until(lambda: rank.inventory.applied.num_removed > 0)
        named = [f"{worker.url}=127.0.0.1:{agent.port}"]
        config = config_of(worker=[worker.url], agent=named, port=0, admin_port=0)
        gateway = Gateway(config)
        await gateway.start()
        try:
            await until(lambda: [member.stream for member in gateway.fleet] == [StreamState.EXACT])
            (member,) = gateway.fleet
            assert set(gateway.index.blocks(member.worker.id)) == set(rank.inventory.blocks())
            assert rank.inventory.applied.num_unknown_removals == 0
            await agent.listening.server.stop(0)
            ((feed, _),) = next(iter(gateway.roster)).feeds.values()
            await until(lambda: feed.endpoint.startswith("tcp"))
            await until(lambda: member.stream is StreamState.EXACT)
            before = gateway.index.num_blocks(member.worker.id)
            await asyncio.to_thread(worker.complete, [7, *range(2, 300)], max_tokens=4)
            applied = gateway.index.applied(member.worker.id)
            await until(lambda: gateway.index.num_blocks(member.worker.id) != before or applied.num_removed)
            assert (applied.num_unknown_removals, applied.num_orphans) == (0, 0)
            assert member.stream is StreamState.EXACT
        finally:
            await gateway.stop()
    finally:
        await agent.stop()
