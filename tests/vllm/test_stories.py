"""Stories of `tests/stories/test_fleet.py` with real engines: lost batches, late replays, restarts.

One engine has no replays, and engine hashes that are bytes. After each story the index has exactly what the
engine reports as cached for every prompt.
"""

import asyncio
from collections.abc import Callable

import pytest

from engines.vllm import Vllm
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.kv_events import BlocksStored, EventBatch, KvEvent
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import BLOCK, LateGateway, index_is_true, late, new_ids
from tests.vllm.relay import relayed

LENGTH = 5 * BLOCK  # of most prompts: twelve fill an engine of 60 blocks


@pytest.fixture(scope="module", autouse=True)
def starting(start_module_vllm: Callable[..., VllmWorker]) -> VllmWorker:
    """An engine without replays and with bytes as hashes; it starts during the tests of another engine."""
    names = (("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0"),)
    return start_module_vllm(
        has_replay=False, num_gpu_blocks_override=60, max_model_len=1024, extra_env=names
    )


@pytest.fixture(scope="module")
def no_replay(starting: VllmWorker) -> VllmWorker:
    return starting.wait_ready()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[KvEvent]:
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


async def ask_all(gateway: LateGateway, asked: list[list[int]]) -> None:
    for prompt in asked:
        await gateway.ask([*prompt, 7])


def counts(gateway: LateGateway) -> StreamCounts:
    return dict(gateway.gateway.roster.stream_counts())[gateway.id]


async def assert_exact(gateway: LateGateway, asked: list[list[int]]) -> None:
    """Assert that the index is exact, where the last prompt is cached in whole and the first one is not."""
    found = await index_is_true(gateway, asked)
    assert found[0] == LENGTH
    assert found[-1] < LENGTH


# with replays -------------------------------------------------------------------------------------


async def test_gap_is_filled_by_replay(vllm_small: VllmWorker, monkeypatch: pytest.MonkeyPatch) -> None:
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
        await assert_exact(gateway, asked)
        assert gateway.member.stream is StreamState.EXACT
        assert (counts(gateway).num_gaps - gaps, counts(gateway).num_resets) == (2, resets)


async def test_repeated_batches_count_once(vllm_small: VllmWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated store would add a copy that stays, a repeated removal would remove a cached copy."""
    async with relayed(vllm_small, monkeypatch) as relay, late(vllm_small, StreamState.EXACT) as gateway:
        applied = gateway.gateway.index.applied(gateway.id)
        relay.num_copies = 2
        asked = prompts("twice", 16)
        await ask_all(gateway, asked)
        await assert_exact(gateway, asked)
        assert gateway.member.stream is StreamState.EXACT
        assert counts(gateway).num_repeats >= len(asked)
        assert (counts(gateway).num_gaps, counts(gateway).num_resets) == (0, 0)
        assert (applied.num_unknown_removals, applied.num_orphans) == (0, 0)


async def test_replay_after_the_removals_restores_no_removed_block(
    vllm_small: VllmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay was answered at the gap; all its blocks are evicted before it arrives."""
    async with relayed(vllm_small, monkeypatch) as relay, late(vllm_small, StreamState.EXACT) as gateway:
        asked = prompts("late", 4)
        await ask_all(gateway, asked[:2])
        await gateway.caught_up()
        resets = counts(gateway).num_resets
        relay.hold_replays()
        relay.num_to_lose = 1
        await ask_all(gateway, asked[2:])  # the first batch is lost, the second one shows the gap
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


async def test_restarted_engine_without_replays_is_known_to_be_empty(
    no_replay: VllmWorker, decoded: list[KvEvent]
) -> None:
    """The first test of this engine, so that the gateway receives its first batch; its hashes are bytes."""
    async with late(no_replay) as gateway:
        await subscribed(gateway)
        before = prompts("before", 16)
        await ask_all(gateway, before)
        assert gateway.member.stream is StreamState.EXACT
        await assert_exact(gateway, before)

        process = gateway.gateway.roster.start_time_s(no_replay.url)
        await asyncio.to_thread(no_replay.kill)
        await gateway.until(lambda: gateway.gateway.index.num_blocks(gateway.id) == 0)
        await asyncio.to_thread(no_replay.start().wait_ready)
        await gateway.until(lambda: gateway.gateway.roster.start_time_s(no_replay.url) not in (None, process))
        await subscribed(gateway)
        assert await gateway.ask([*before[-1], 7]) == (0, 0)
        after = prompts("after", 16)
        await ask_all(gateway, after)
        assert gateway.member.stream is StreamState.EXACT
        await assert_exact(gateway, [*before[-2:], *after])
    names = [name for event in decoded if isinstance(event, BlocksStored) for name in event.engine_hashes]
    assert names and all(isinstance(name, bytes) for name in names)


async def subscribed(gateway: LateGateway) -> None:
    """Wait until the engine knows of the subscription, since no replay repeats earlier batches."""
    (endpoint,) = gateway.gateway.roster

    def is_connected() -> bool:
        return gateway.member.is_up and [feed.is_connected for feed, _ in endpoint.feeds.values()] == [True]

    await gateway.until(is_connected)
    await asyncio.sleep(0.5)


async def test_gap_without_replays_makes_the_stream_blind_and_credits_no_missing_block(
    no_replay: VllmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relayed(no_replay, monkeypatch) as relay, late(no_replay) as gateway:
        await subscribed(gateway)
        await emptied(gateway)
        known = prompts("known", 3)
        await ask_all(gateway, known)
        await index_is_true(gateway, known)
        await gateway.caught_up()
        relay.num_to_lose = 2
        missed, received = prompts("missed", 2), prompts("received", 2)
        await ask_all(gateway, [*missed, *received])
        await gateway.caught_up()
        assert gateway.member.stream is StreamState.BLIND
        assert counts(gateway).num_gaps == 1
        assert [gateway.known(prompt) for prompt in missed] == [0, 0]
        assert await index_is_true(gateway, received) == [LENGTH, LENGTH]
        await emptied(gateway)
        await ask_all(gateway, received)
        await index_is_true(gateway, [*known, *missed, *received])


async def emptied(gateway: LateGateway) -> None:
    await asyncio.to_thread(gateway.worker.post, "/reset_prefix_cache")
    await gateway.caught_up()  # a reset is published with the next step
    assert gateway.member.stream is StreamState.EXACT
