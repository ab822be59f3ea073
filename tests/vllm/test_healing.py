"""A gateway before the real engine, warm, whose replay buffer reaches back two batches.

One engine, with an adapter and few blocks, plays the stories that need such a buffer. The engine itself
says what it holds: a probe request's `cached_tokens`.
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
def short(
    vllm_model: Path, tmp_path_factory: pytest.TempPathFactory, start_module_vllm: Callable[..., VllmWorker]
) -> Iterator[VllmWorker]:
    lora = [("adapter-a", make_adapter(tmp_path_factory.mktemp("lora") / "adapter-a"))]
    worker = start_module_vllm(
        replay_buffer=2, num_gpu_blocks_override=NUM_BLOCKS, max_model_len=1024, lora=lora
    )
    yield worker.wait_ready()


@pytest.fixture(params=["announcing", "older"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As 0.32 is, and as if it were a version before announcements."""
    if request.param == "older":
        monkeypatch.setattr(Vllm, "reports_from", None)
    return str(request.param)


async def test_from_the_start_copies_and_evictions_come_to_what_the_engine_holds(short: VllmWorker) -> None:
    """First in this module, so that the engine's first batch is heard: prompts asked at once are stored
    twice, tails are evicted first, and each copy is removed under the same hash."""
    async with late(short, StreamState.EXACT) as gateway:
        prompts = [new_ids(f"start {i}", 400) for i in range(14)]
        twice = [each for prompt in prompts for each in (prompt, prompt)]
        await asyncio.gather(*map(gateway.ask, twice))
        applied = gateway.gateway.index.applied(gateway.id)
        await gateway.until(lambda: applied.num_removed > 0)
        assert (applied.num_unknown_removals, applied.num_orphans) == (0, 0)
        await index_is_true(gateway, prompts)


async def test_each_hot_prefix_is_known_after_two_requests(short: VllmWorker, kind: str) -> None:
    hot = [new_ids(f"{kind} {i}", 320) for i in range(4)]
    await warm(short, *hot, *[new_ids(f"{kind} other {i}", 64) for i in range(3)])
    needed: list[int] = []
    async with late(short) as gateway:
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


async def test_what_hangs_on_an_old_prefix_is_known_under_its_own_name(short: VllmWorker, kind: str) -> None:
    """An unknown parent: its children are placed, and when the engine evicts them they are forgotten."""
    hot = new_ids(f"{kind} parent", 160)
    await warm(short, hot, *[new_ids(f"{kind} parent {i}", 64) for i in range(3)])
    async with late(short) as gateway:
        first = [*hot, *new_ids(f"{kind} child", 96)]
        assert (await gateway.ask(first))[1] == 160
        await gateway.until(lambda: gateway.known(first) == 256)
        second = [*first, *new_ids(f"{kind} grandchild", 65)]
        predicted, cached = await gateway.ask(second)
        assert predicted == cached == 256
        await gateway.until(lambda: gateway.known(second) == 320)
        assert await index_is_true(gateway, [first, second]) == [320, 256]
        recovery = gateway.gateway.recovery_observer.get(gateway.id)
        assert recovery is not None
        assert (recovery.counts.num_placed > 0) is (kind == "older")
        child = gateway.hashes(second)[5:]
        assert not any(block in recovery.proofs for block in child)
        index = gateway.gateway.index
        for i in range(12):  # more than fits
            await warm(short, new_ids(f"{kind} flood {i}", 960))
        await gateway.until(lambda: not set(child) & set(index.blocks(gateway.id)))
        assert await gateway.held(second) < 160


async def test_an_adapter_and_a_salt_never_share_with_the_base(short: VllmWorker, kind: str) -> None:
    prompt = new_ids(f"{kind} spaces", 200)
    ways: list[dict[str, Any]] = [
        {},
        {"cache_salt": "s"},
        {"model": "adapter-a"},
        {"model": "adapter-a", "cache_salt": "s"},
    ]
    for way in ways[::2]:
        await warm(short, prompt, **way)
    await warm(short, *[new_ids(f"{kind} spaces {i}", 64) for i in range(3)])
    async with late(short) as gateway:
        for i, way in enumerate(ways):
            adapter = "adapter-a" if "model" in way else None
            predicted, cached = await gateway.ask([*prompt, 9], **way)
            assert (predicted, cached) == (0, 0 if i % 2 else 192)
            await gateway.until(
                lambda adapter=adapter, way=way: gateway.known(prompt, adapter, way.get("cache_salt")) == 192
            )
            predicted, cached = await gateway.ask([*prompt, 9], **way)
            assert predicted == cached == 192
        for way in ways:
            assert await gateway.held(prompt, **way) == 192


async def test_a_reset_ends_it_and_then_all_is_exact(short: VllmWorker) -> None:
    await warm(short, new_ids("before", 200), *[new_ids(f"before {i}", 64) for i in range(3)])
    async with late(short) as gateway:
        assert (await gateway.ask([*new_ids("before", 200), 1]))[1] == 192
        await asyncio.to_thread(short.post, "/reset_prefix_cache")
        await gateway.ask([1, 2, 3])  # a reset is published with the next step
        await gateway.until(lambda: gateway.member.stream is StreamState.EXACT)
        applied = gateway.gateway.index.applied(gateway.id)
        num_unknown, num_removed = applied.num_unknown_removals, applied.num_removed
        for i in range(14):
            await gateway.ask(new_ids(f"after {i}", 400))
        await gateway.until(lambda: applied.num_removed > num_removed)
        assert (applied.num_unknown_removals, applied.num_orphans) == (num_unknown, 0)
        await index_is_true(gateway, [new_ids(f"after {i}", 400) for i in range(14)])
