"""Real Envoy before two real vLLM workers, with kvgate as its endpoint picker."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from loadtest.ports import free_port
from tests.envoy.envoy import configured, envoy
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import until
from tests.vllm.chats import BLOCK, Pair, chat, settle, started, text

pytestmark = pytest.mark.ci


async def test_second_turn_through_envoy_goes_to_the_first_turns_worker_and_its_hit_is_predicted(
    vllm_pair: Pair, vllm_model: Path
) -> None:
    port, epp_port = free_port(), free_port()
    config = configured("envoy.yaml", port, [epp_port], [worker.url for worker in vllm_pair])
    gateway = started(vllm_pair, vllm_model, "--epp-port", str(epp_port))
    await asyncio.to_thread(gateway.__enter__)
    try:
        await until(lambda: asyncio.to_thread(gateway.is_ready), "both workers have joined")
        await until(lambda: gateway.streams() == ["exact", "exact"], "events arrive")
        async with envoy(config, port):
            through = cast(GatewayProcess, SimpleNamespace(url=f"http://127.0.0.1:{port}"))
            await until(lambda: asyncio.to_thread(_is_picked, through), "Envoy asks the picker")
            for seed in range(4):
                await asyncio.to_thread(_two_turns, through, gateway, f"envoy {seed}")
    finally:
        await asyncio.to_thread(gateway.__exit__, None, None, None)


def _is_picked(through: GatewayProcess) -> bool:
    """True once an answer has the picker's headers: until it is healthy, Envoy lets requests pass."""
    try:
        return bool(chat(through, [{"role": "user", "content": "hello"}]).decision)
    except KeyError:
        return False


def _two_turns(through: GatewayProcess, gateway: GatewayProcess, seed: str) -> None:
    messages = [
        {"role": "system", "content": text(f"system {seed}")},
        {"role": "user", "content": text(f"user {seed}", 40)},
    ]
    first = chat(through, messages)
    assert first.cached == first.predicted
    settle(gateway)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": text(f"more {seed}", 30)},
    ]
    second = chat(through, messages)
    assert second.worker == first.worker and second.predicted == second.cached
    assert second.cached >= first.answer.usage.prompt_tokens // BLOCK * BLOCK - BLOCK
    record = gateway.admin(f"/admin/decisions/{second.decision}")
    assert record["outcome"]["reported_cached_tokens"] == second.cached
