"""Stories of tests/stories/test_fleet.py that real engines can play too: batches that are lost, replays that
come
late, an engine without replays that restarts in place, one that names its blocks by bytes.

After each the index is what the engine holds: every prompt is probed.
"""

import asyncio
from collections.abc import Callable

import pytest

from engines.vllm import Vllm
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.kv_events import BlocksStored, EventBatch, KvEvent
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import BLOCK, Late, index_is_true, late, new_ids
from tests.vllm.relay import relayed

LENGTH = 5 * BLOCK  # of most prompts: twelve fill an engine of 60 blocks


@pytest.fixture(scope="module", autouse=True)
def starting(start_module_vllm: Callable[..., VllmWorker]) -> VllmWorker:
    """An engine without replays, whose hashes are bytes. It starts during the tests that need another."""
    names = (("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0"),)
    return start_module_vllm(
        has_replay=False, num_gpu_blocks_override=60, max_model_len=1024, extra_env=names
    )


@pytest.fixture(scope="module")
def mute(starting: VllmWorker) -> VllmWorker:
    return starting.wait_ready()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[KvEvent]:
    """All events that gateways of this process decode."""
    events: list[KvEvent] = []
    decode = Vllm.decode

    def listen(engine: Vllm, frames: list[bytes]) -> EventBatch:
        batch = decode(engine, frames)
        events.extend(batch.events)
        return batch

    monkeypatch.setattr(Vllm, "decode", listen)
    return events


def prompts(name: str, num: int) -> list[list[int]]:
    return [new_ids(f"{name} {i}", LENGTH) for i in range(num)]


async def ask_all(gateway: Late, asked: list[list[int]]) -> None:
    for prompt in asked:
        await gateway.ask([*prompt, 7])


def counts(gateway: Late) -> StreamCounts:
    return dict(gateway.gateway.roster.stream_counts())[gateway.id]


async def are_true(gateway: Late, asked: list[list[int]]) -> None:
    """Some are there whole, and some were evicted."""
    found = await index_is_true(gateway, asked)
    assert found[0] == LENGTH
    assert found[-1] < LENGTH


# with replays -------------------------------------------------------------------------------------


async def test_a_gap_in_the_middle_is_filled_by_replay(
    vllm_small: VllmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relayed(vllm_small, monkeypatch) as relay, late(vllm_small, StreamState.EXACT) as gateway:
        asked = prompts("gap", 16)
        await ask_all(gateway, asked[:4])
        await gateway.caught_up()
        resets, gaps = counts(gateway).num_resets, counts(gateway).num_gaps
        relay.num_to_lose = 2
        await ask_all(gateway, asked[4:6])
        await gateway.until(lambda: relay.num_to_lose == 0)
        assert await index_is_true(gateway, asked[:6]) == [LENGTH] * 6
        await ask_all(gateway, asked[6:10])
        relay.num_to_lose = 2  # with evictions in them
        await ask_all(gateway, asked[10:])
        await are_true(gateway, asked)
        assert gateway.member.stream is StreamState.EXACT
        assert (counts(gateway).num_gaps - gaps, counts(gateway).num_resets) == (2, resets)


async def test_batches_that_come_twice_count_once(
    vllm_small: VllmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store again would be a copy that nothing removes, a removal again would take a copy that is there."""
    async with relayed(vllm_small, monkeypatch) as relay, late(vllm_small, StreamState.EXACT) as gateway:
        applied = gateway.gateway.index.applied(gateway.id)
        relay.num_copies = 2
        asked = prompts("twice", 16)
        await ask_all(gateway, asked)
        await are_true(gateway, asked)
        assert gateway.member.stream is StreamState.EXACT
        assert counts(gateway).num_repeats >= len(asked)
        assert (counts(gateway).num_gaps, counts(gateway).num_resets) == (0, 0)
        assert (applied.num_unknown_removals, applied.num_orphans) == (0, 0)


async def test_a_replay_that_comes_after_the_removals_brings_nothing_back(
    vllm_small: VllmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is of the moment of the gap; all that it stores is evicted before it arrives."""
    async with relayed(vllm_small, monkeypatch) as relay, late(vllm_small, StreamState.EXACT) as gateway:
        asked = prompts("late", 4)
        await ask_all(gateway, asked[:2])
        await gateway.caught_up()
        resets = counts(gateway).num_resets
        relay.hold_replays()
        relay.num_to_lose = 1
        await ask_all(gateway, asked[2:])  # the first is lost, the second tells of the gap
        await gateway.until(lambda: relay.num_held)
        flood = [new_ids(f"flood {i}", 30 * BLOCK) for i in range(2)]
        await ask_all(gateway, flood)
        assert gateway.member.stream is StreamState.CATCHING_UP
        relay.release_replays()
        await gateway.until(lambda: gateway.member.stream is StreamState.EXACT)
        await gateway.caught_up()
        assert [gateway.known(prompt) for prompt in asked] == [0] * 4
        assert counts(gateway).num_resets == resets
        await index_is_true(gateway, [*asked, *flood])
        assert gateway.gateway.index.applied(gateway.id).num_unknown_removals == 0


# without replays ----------------------------------------------------------------------------------


async def test_a_restart_in_place_without_replays_is_an_empty_cache(
    mute: VllmWorker, heard: list[KvEvent]
) -> None:
    """The first for this engine, so that its first batch is heard. Its hashes are bytes throughout."""
    async with late(mute) as gateway:
        await subscribed(gateway)
        before = prompts("before", 16)
        await ask_all(gateway, before)
        assert gateway.member.stream is StreamState.EXACT
        await are_true(gateway, before)

        process = gateway.gateway.roster.start_time_s(mute.url)
        await asyncio.to_thread(mute.kill)
        await gateway.until(lambda: gateway.gateway.index.num_blocks(gateway.id) == 0)
        await asyncio.to_thread(mute.start().wait_ready)
        await gateway.until(lambda: gateway.gateway.roster.start_time_s(mute.url) not in (None, process))
        await subscribed(gateway)
        assert await gateway.ask([*before[-1], 7]) == (0, 0)
        after = prompts("after", 16)
        await ask_all(gateway, after)
        assert gateway.member.stream is StreamState.EXACT
        await are_true(gateway, [*before[-2:], *after])
    names = [name for event in heard if isinstance(event, BlocksStored) for name in event.engine_hashes]
    assert names and all(isinstance(name, bytes) for name in names)


async def subscribed(gateway: Late) -> None:
    """No replay brings what is said before the engine knows that we listen."""
    (endpoint,) = gateway.gateway.roster

    def is_connected() -> bool:
        return gateway.member.is_up and [feed.is_connected for feed, _ in endpoint.feeds.values()] == [True]

    await gateway.until(is_connected)
    await asyncio.sleep(0.5)


async def test_without_replays_a_gap_is_said_and_credits_nothing_that_is_gone(
    mute: VllmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relayed(mute, monkeypatch) as relay, late(mute) as gateway:
        await subscribed(gateway)
        await emptied(gateway)
        known = prompts("known", 3)
        await ask_all(gateway, known)
        await index_is_true(gateway, known)
        await gateway.caught_up()
        relay.num_to_lose = 2
        missed, told = prompts("missed", 2), prompts("told", 2)
        await ask_all(gateway, [*missed, *told])
        await gateway.caught_up()
        assert gateway.member.stream is StreamState.BLIND
        assert counts(gateway).num_gaps == 1
        assert [gateway.known(prompt) for prompt in missed] == [0, 0]
        assert await index_is_true(gateway, told) == [LENGTH, LENGTH]
        await emptied(gateway)
        await ask_all(gateway, told)
        await index_is_true(gateway, [*known, *missed, *told])


async def emptied(gateway: Late) -> None:
    await asyncio.to_thread(gateway.worker.post, "/reset_prefix_cache")
    await gateway.caught_up()  # a reset is published with the next step
    assert gateway.member.stream is StreamState.EXACT
