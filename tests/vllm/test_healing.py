"""Recovery of BLIND streams at a warm real engine with a replay buffer of two batches.

All tests share the engine, which has an adapter and few blocks. The reference is the engine's own report,
`cached_tokens` of a request sent to it.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.vllm import Vllm
from gateway.core.event_stream import StreamState
from gateway.index.blind_recovery import SETTLE_S
from tests.support.engine_model import make_adapter
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import index_is_true, late, new_ids, warm

pytestmark = pytest.mark.vllm

NUM_BLOCKS = 150
GOAL = 2


@pytest.fixture(scope="module")
def short_buffer(
    vllm_model: Path, tmp_path_factory: pytest.TempPathFactory, start_module_vllm: Callable[..., VllmWorker]
) -> Iterator[VllmWorker]:
    lora = [("adapter-a", make_adapter(tmp_path_factory.mktemp("lora") / "adapter-a"))]
    worker = start_module_vllm(
        replay_buffer=2, num_gpu_blocks_override=NUM_BLOCKS, max_model_len=1024, lora=lora
    )
    yield worker.wait_ready()


@pytest.fixture(params=["announcing", "older"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine's version as it is, which announces hits, and as if it were older and announced none."""
    if request.param == "older":
        monkeypatch.setattr(Vllm, "reports_from", None)
    return str(request.param)


async def test_index_from_the_engines_start_is_exact_after_copies_and_evictions(
    short_buffer: VllmWorker,
) -> None:
    """Concurrent equal prompts are stored twice, tails evicted first, each copy removed by the same hash.

    The test is the first one of this module, so that the gateway receives the engine's first batch.
    """
    async with late(short_buffer, StreamState.EXACT) as gateway:
        prompts = [new_ids(f"start {i}", 400) for i in range(14)]
        twice = [each for prompt in prompts for each in (prompt, prompt)]
        await asyncio.gather(*map(gateway.ask, twice))
        applied = gateway.gateway.index.applied(gateway.id)
        await gateway.until(lambda: applied.num_removed > 0)
        assert (applied.num_unknown_removals, applied.num_orphans) == (0, 0)
        await index_is_true(gateway, prompts)


async def test_each_hot_prefix_is_known_after_two_requests(short_buffer: VllmWorker, kind: str) -> None:
    hot = [new_ids(f"{kind} {i}", 320) for i in range(4)]
    await warm(short_buffer, *hot, *[new_ids(f"{kind} other {i}", 64) for i in range(3)])
    needed: list[int] = []
    async with late(short_buffer) as gateway:
        for i, prefix in enumerate(hot):
            for num in range(1, 6):
                question = [*prefix, *new_ids(f"{kind} question {i} {num}", 70)]
                known = gateway.known(prefix)
                predicted, cached = await gateway.ask(question)
                assert cached == 320
                if predicted == cached:
                    assert known == 320  # by the index, not by assumption
                    needed.append(num)
                    break
                await asyncio.sleep(3 * SETTLE_S)
        assert gateway.member.stream is StreamState.BLIND
        await index_is_true(gateway, hot)
    print(f"stream.heal_requests ({kind}): {max(needed)} of {needed}")
    assert len(needed) == len(hot)
    assert 1 < max(needed) <= GOAL


async def test_blocks_behind_an_old_prefix_are_known_by_engine_hash(
    short_buffer: VllmWorker, kind: str
) -> None:
    """Blocks behind an unknown parent are located, and forgotten when the engine evicts them."""
    hot = new_ids(f"{kind} parent", 160)
    await warm(short_buffer, hot, *[new_ids(f"{kind} parent {i}", 64) for i in range(3)])
    async with late(short_buffer) as gateway:
        first = [*hot, *new_ids(f"{kind} child", 96)]
        assert (await gateway.ask(first))[1] == 160
        await gateway.until(lambda: gateway.known(first) == 256)
        second = [*first, *new_ids(f"{kind} grandchild", 65)]
        predicted, cached = await gateway.ask(second)
        assert predicted == cached == 256
        await gateway.until(lambda: gateway.known(second) == 320)
        assert await index_is_true(gateway, [first, second]) == [320, 256]
        recovery = gateway.gateway.parts.streams.recovery_observer.get(gateway.id)
        assert recovery is not None
        assert (recovery.counts.num_placed > 0) is (kind == "older")
        child = gateway.hashes(second)[5:]
        assert not any(block in recovery.proofs for block in child)
        index = gateway.gateway.index
        for i in range(12):  # more than the cache has room for
            await warm(short_buffer, new_ids(f"{kind} flood {i}", 960))
        await gateway.until(lambda: not set(child) & set(index.blocks(gateway.id)))
        assert await gateway.cached(second) < 160


async def test_adapters_and_salts_share_no_prefix_with_the_base_model(
    short_buffer: VllmWorker, kind: str
) -> None:
    prompt = new_ids(f"{kind} spaces", 200)
    variants: list[dict[str, Any]] = [
        {},
        {"cache_salt": "s"},
        {"model": "adapter-a"},
        {"model": "adapter-a", "cache_salt": "s"},
    ]
    for variant in variants[::2]:
        await warm(short_buffer, prompt, **variant)
    await warm(short_buffer, *[new_ids(f"{kind} spaces {i}", 64) for i in range(3)])
    async with late(short_buffer) as gateway:
        for i, variant in enumerate(variants):
            adapter = "adapter-a" if "model" in variant else None
            predicted, cached = await gateway.ask([*prompt, 9], **variant)
            assert (predicted, cached) == (0, 0 if i % 2 else 192)
            await gateway.until(
                lambda adapter=adapter, variant=variant: (
                    gateway.known(prompt, adapter, variant.get("cache_salt")) == 192
                )
            )
            predicted, cached = await gateway.ask([*prompt, 9], **variant)
            assert predicted == cached == 192
        for variant in variants:
            assert await gateway.cached(prompt, **variant) == 192


async def test_reset_of_the_engines_cache_makes_the_stream_exact(short_buffer: VllmWorker) -> None:
    await warm(short_buffer, new_ids("before", 200), *[new_ids(f"before {i}", 64) for i in range(3)])
    async with late(short_buffer) as gateway:
        assert (await gateway.ask([*new_ids("before", 200), 1]))[1] == 192
        await asyncio.to_thread(short_buffer.post, "/reset_prefix_cache")
        await gateway.ask([1, 2, 3])  # a reset is published with the next step
        await gateway.until(lambda: gateway.member.stream is StreamState.EXACT)
        applied = gateway.gateway.index.applied(gateway.id)
        num_unknown, num_removed = applied.num_unknown_removals, applied.num_removed
        for i in range(14):
            await gateway.ask(new_ids(f"after {i}", 400))
        await gateway.until(lambda: applied.num_removed > num_removed)
        assert (applied.num_unknown_removals, applied.num_orphans) == (num_unknown, 0)
        await index_is_true(gateway, [new_ids(f"after {i}", 400) for i in range(14)])
