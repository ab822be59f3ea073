"""Simulated workers in the test's own loop, fast enough that no test waits for them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import aiohttp
import pytest

from engines.sim import Sim, SimConfig, TextModel
from engines.sim.config import BUNDLED_TOKENIZER
from loadtest.ports import sim_ports

StartSim: TypeAlias = Callable[..., Awaitable[Sim]]

FAST = {"decode_tokens_per_s": 20_000.0, "prefill_tokens_per_s": 1e7, "kv_blocks": 200}


@pytest.fixture(scope="session")
def texts() -> TextModel:
    return TextModel.load(BUNDLED_TOKENIZER)


@pytest.fixture
async def start_sim(texts: TextModel) -> AsyncIterator[StartSim]:
    """`await start_sim(kv_blocks=40)` returns a started worker, stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(**fields: Any) -> Sim:
            ports = sim_ports(fields.get("dp_size", 1), transfers=True)
            sim = await Sim(SimConfig(**FAST | ports | fields), texts).start()
            stack.push_async_callback(sim.stop)
            return sim

        yield start


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session
