"""Workers with offload tiers and several KV groups, before a gateway: the index stays exact in each of them.

After each story the index has, in each medium, exactly the blocks that each engine has cached.
"""

import asyncio
from typing import Any

import pytest

from engines.sim import Sim
from gateway.core.blocks import BlockHash
from gateway.discovery import roster
from gateway.index.memory import MemoryIndex
from tests.support.stories.fleet_story import DEADLINE_S, FleetStory, fleet_story, worker_id
from tests.support.texts import conversations

pytestmark = pytest.mark.process

Places = dict[str, set[BlockHash]]
SMALL: dict[str, Any] = {"kv_blocks": 80, "max_model_len": 1200}


def known(s: FleetStory, sim: Sim) -> Places:
    """Blocks that the index has by medium, and under "window" those of the group beside full attention."""
    index = s.gateway.index
    assert isinstance(index, MemoryIndex)
    holder = index._holders[worker_id(sim)]
    found: Places = {"window": set(holder.groups.held.get(1, ())) if holder.groups else set()}
    for (medium, _), names in holder.tiers.items():
        found.setdefault(medium, set()).update(index._edges.hash_at(block) for _, block in names.items())
    return {place: blocks for place, blocks in found.items() if blocks}


async def cached(s: FleetStory, sim: Sim) -> Places:
    """Blocks that the engine reports by medium."""
    async with s.session.get(f"{sim.url}/sim/media") as answer:
        media = await answer.json()
    return {place: set(blocks) for place, blocks in media["0"].items() if blocks}


async def settled(s: FleetStory, *, is_shared: bool = False) -> list[Places]:
    """Wait until the index is exact; shared blocks count for each worker that published about their tier."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            truth = [await cached(s, sim) for sim in s.sims]
            if is_shared:
                both = truth[0].get("STORAGE@", set()) | truth[1].get("STORAGE@", set())
                truth = [places | {"STORAGE@": both} if both else places for places in truth]
            if [known(s, sim) for sim in s.sims] == truth:
                return truth
            await asyncio.sleep(0.05)


async def flush(s: FleetStory) -> None:
    """Make each engine do two more steps, which publish the blocks on their way to a tier."""
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
async def test_index_of_offload_tiers_is_exact(flags: dict[str, Any]) -> None:
    async with fleet_story(**SMALL, **flags) as s:
        for seed in range(
            1, 9
        ):  # until a tier of each worker has blocks that its GPU lacks; routing is random
            await s.talk(seed)
            await flush(s)
            truth = await settled(s)
            if all(places.get("CPU", set()) - places.get("GPU", set()) for places in truth):
                break
        else:
            pytest.fail("blocks stayed on the GPU")
        applied = [s.gateway.index.applied(worker_id(sim)) for sim in s.sims]
        assert [(a.num_orphans, a.num_mismatched) for a in applied] == [(0, 0)] * 2


async def test_clear_spares_offload_tiers_and_their_blocks_are_loaded_again() -> None:
    async with fleet_story(cpu_blocks=300) as s:
        body = {"model": "m", "prompt": list(range(1, 200)), "max_tokens": 2}

        async def ask() -> tuple[str, int]:
            async with s.session.post(f"{s.url}/v1/completions", json=body) as answer:
                completion = await answer.json()
                num_cached = completion["usage"]["prompt_tokens_details"]["cached_tokens"]
                return answer.headers["x-kvgate-worker"], num_cached

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


async def test_shared_tier_counts_for_all_workers() -> None:
    async with fleet_story(**SMALL, storage_blocks=2000, storage_locality="REMOTE") as s:
        await s.talk(3)
        await flush(s)
        truth = await settled(s, is_shared=True)
        assert truth[0]["STORAGE@"] == truth[1]["STORAGE@"]


@pytest.mark.parametrize("wire", ["map", "array"])
async def test_sliding_window_bounds_predictions_as_it_bounds_hits(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests follow one another and no block is assumed, so each prediction is by events alone."""
    monkeypatch.setattr(roster, "EVENT_GRACE_S", 0.0)
    async with fleet_story(window_tokens=100, window_blocks=60, event_wire=wire) as s:
        await s.talk(4, num_conversations=4)
        await settled(s)
        metrics = [s.gateway.metrics.worker(worker_id(sim)) for sim in s.sims]
        before = sum(m.prediction_error_tokens for m in metrics)
        bodies = [body for i in range(4) for body in conversations(400 + i).turns(4)]
        for body in bodies:
            await s.chat(body | {"max_tokens": 1})
            await settled(s)
        assert sum(m.prediction_error_tokens for m in metrics) == before
        bounded = [m for m in metrics if m.reported_cached_tokens < m.prompt_tokens * 0.9]
        assert bounded and sum(m.reported_cached_tokens for m in metrics) > 0


async def test_partial_blocks_are_ignored_without_a_mismatch() -> None:
    async with fleet_story(**SMALL, partial_blocks=True) as s:
        await s.talk(9)
        await settled(s)
        await s.settled()
        applied = [s.gateway.index.applied(worker_id(sim)) for sim in s.sims]
        assert [a.num_mismatched for a in applied] == [0, 0]
        assert all(a.num_unknown_removals for a in applied)


@pytest.mark.parametrize("flags", [{}, {"cpu_blocks": 100}])
async def test_index_is_exact_after_blocks_in_the_middle_fail_and_are_computed_again(
    flags: dict[str, Any],
) -> None:
    async with fleet_story(**flags) as s:
        for seed in (10, 11):
            await s.talk(seed)
            for sim in s.sims:
                await s.faults(sim, fail_blocks=30)
                await s.faults(sim)
            await flush(s)
            truth = await settled(s)
        await s.talk(10)
        await flush(s)
        refilled = await settled(s)
        assert sum(len(places["GPU"]) for places in refilled) > sum(len(places["GPU"]) for places in truth)
