"""Workers that keep blocks in several places and several groups: is the index true in each?

After each story each worker's blocks in the index are the engine's own, block for block, in each medium.
"""

import asyncio
from typing import Any

import pytest

from engines.sim import Sim
from gateway.core.blocks import BlockHash
from gateway.discovery import roster
from gateway.index.memory import MemoryIndex
from loadtest.workloads.conversations import Conversations
from tests.stories.test_fleet import DEADLINE_S, Story, story, worker_id

pytestmark = pytest.mark.process

Places = dict[str, set[BlockHash]]
SMALL: dict[str, Any] = {"kv_blocks": 80, "max_model_len": 1200}


def known(s: Story, sim: Sim) -> Places:
    """By medium, and under "window" of the group beside full attention."""
    index = s.gateway.index
    assert isinstance(index, MemoryIndex)
    holder = index._holders[worker_id(sim)]
    found: Places = {"window": set(holder.groups.held.get(1, ())) if holder.groups else set()}
    for (medium, _), names in holder.tiers.items():
        found.setdefault(medium, set()).update(index._edges.hash_at(block) for _, block in names.items())
    return {place: blocks for place, blocks in found.items() if blocks}


async def held(s: Story, sim: Sim) -> Places:
    async with s.session.get(f"{sim.url}/sim/media") as answer:
        told = await answer.json()
    return {place: set(blocks) for place, blocks in told["0"].items() if blocks}


async def settled(s: Story, *, is_shared: bool = False) -> list[Places]:
    """The index becomes the truth. What is shared, each worker has that has spoken of it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            truth = [await held(s, sim) for sim in s.sims]
            if is_shared:
                both = truth[0].get("STORAGE@", set()) | truth[1].get("STORAGE@", set())
                truth = [places | {"STORAGE@": both} if both else places for places in truth]
            if [known(s, sim) for sim in s.sims] == truth:
                return truth
            await asyncio.sleep(0.05)


async def flush(s: Story) -> None:
    """Two more steps at each worker: what is on its way to a tier is told with them."""
    for i, sim in enumerate(s.sims * 2):
        body = {"model": "m", "prompt": [i + 1] * 3, "max_tokens": 3}
        async with s.session.post(f"{sim.url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.parametrize(
    "flags",
    [
        {"cpu_blocks": 150},
        {"cpu_blocks": 60, "storage_blocks": 300, "event_wire": "array"},
        {"cpu_blocks": 60, "storage_blocks": 300, "storage_locality": "LOCAL", "hash": "bytes"},
    ],
)
async def test_offload_tiers_are_known_block_for_block(flags: dict[str, Any]) -> None:
    async with story(**SMALL, **flags) as s:
        for seed in range(1, 9):  # until a tier of each has what its GPU has not: who serves more is chance
            await s.talk(seed)
            await flush(s)
            truth = await settled(s)
            if all(places.get("CPU", set()) - places.get("GPU", set()) for places in truth):
                break
        else:
            pytest.fail("blocks stayed on the GPU")
        applied = [s.gateway.index.applied(worker_id(sim)) for sim in s.sims]
        assert [(a.num_orphans, a.num_mismatched) for a in applied] == [(0, 0)] * 2


async def test_a_clear_spares_the_tiers_and_what_is_there_is_loaded_again() -> None:
    async with story(cpu_blocks=300) as s:
        body = {"model": "m", "prompt": list(range(1, 200)), "max_tokens": 2}

        async def ask() -> tuple[str, int]:
            async with s.session.post(f"{s.url}/v1/completions", json=body) as answer:
                told = await answer.json()
                cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
                return answer.headers["x-kvgate-worker"], cached

        first, _ = await ask()
        await flush(s)
        await settled(s)
        for sim in s.sims:
            async with s.session.post(f"{sim.url}/reset_prefix_cache") as answer:
                assert await answer.json() == {"success": True}
        await flush(s)
        truth = await settled(s)
        assert sum(len(places.get("CPU", ())) for places in truth) == 12
        assert await ask() == (first, 192)
        await flush(s)
        await settled(s)


async def test_a_tier_that_all_reach_counts_for_all() -> None:
    async with story(**SMALL, storage_blocks=2000, storage_locality="REMOTE") as s:
        await s.talk(3)
        await flush(s)
        truth = await settled(s, is_shared=True)
        assert truth[0]["STORAGE@"] == truth[1]["STORAGE@"]


@pytest.mark.parametrize("wire", ["map", "array"])
async def test_a_window_bounds_hits_as_the_engine_finds_them(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request after the other, and nothing is assumed, so that what is predicted is what is there."""
    monkeypatch.setattr(roster, "EVENT_GRACE_S", 0.0)
    async with story(window_tokens=100, window_blocks=60, event_wire=wire) as s:
        await s.talk(4, num_conversations=4)
        await settled(s)
        metrics = [s.gateway.metrics.worker(worker_id(sim)) for sim in s.sims]
        before = sum(m.prediction_error_tokens for m in metrics)
        bodies = [body for i in range(4) for body in Conversations("m", 400 + i, turn_chars=300).turns(4)]
        for body in bodies:
            await s.chat(body | {"max_tokens": 1})
            await settled(s)
        assert sum(m.prediction_error_tokens for m in metrics) == before
        bounded = [m for m in metrics if m.reported_cached_tokens < m.prompt_tokens * 0.9]
        assert bounded and sum(m.reported_cached_tokens for m in metrics) > 0


async def test_beginnings_of_blocks_are_neither_known_nor_a_reason_to_doubt() -> None:
    async with story(**SMALL, partial_blocks=True) as s:
        await s.talk(9)
        await settled(s)
        await s.settled()
        applied = [s.gateway.index.applied(worker_id(sim)) for sim in s.sims]
        assert [a.num_mismatched for a in applied] == [0, 0]
        assert all(a.num_unknown_removals for a in applied)


@pytest.mark.parametrize("flags", [{}, {"cpu_blocks": 100}])
async def test_holes_in_the_middle_are_known_and_filled_again(flags: dict[str, Any]) -> None:
    async with story(**flags) as s:
        for seed in (10, 11):
            await s.talk(seed)
            for sim in s.sims:
                await s.faults(sim, fail_blocks=30)
                await s.faults(sim)
            await flush(s)
            truth = await settled(s)
        await s.talk(10)
        await flush(s)
        again = await settled(s)
        assert sum(len(places["GPU"]) for places in again) > sum(len(places["GPU"]) for places in truth)
