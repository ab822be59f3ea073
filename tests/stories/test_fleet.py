"""The gateway before simulated engines that lose, repeat, delay and evict: the index stays exact.

After each story the index has, for every worker, exactly the blocks that its engine has cached.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from engines.sim import Sim
from gateway.app import Gateway
from gateway.core.event_stream import StreamState
from gateway.discovery import feeds
from gateway.ingest.zmq import ZmqFeed, ZmqTimes
from tests.support.patience import until
from tests.support.stories.fleet_story import FleetStory, fleet_story, worker_id
from tests.support.texts import conversations

pytestmark = pytest.mark.process


@pytest.mark.parametrize("flags", [{}, {"event_wire": "array"}, {"hash": "bytes"}, {"kv_blocks": 60}])
async def test_index_is_exact_after_traffic_with_evictions(flags: dict[str, Any]) -> None:
    async with fleet_story(**flags) as s:
        await s.talk(1)
        await s.settled()
        await s.talk(2)
        await s.settled()


@pytest.mark.parametrize("fault", ["lose", "delay", "duplicate", "reorder"])
async def test_index_is_exact_after_faulty_events(fault: str) -> None:
    async with fleet_story() as s:
        for sim in s.sims:
            plan = {fault: {"probability": 0.3}}
            await s.faults(sim, **plan, **({"delay_s": 0.05} if fault == "delay" else {}))
        await s.talk(3, num_turns=5)
        for sim in s.sims:
            await s.faults(sim)
        await s.talk(4)
        await s.settled()


async def test_index_forgets_a_restarted_engine_and_becomes_exact_again() -> None:
    async with fleet_story() as s:
        await s.talk(5)
        await s.settled()
        await s.sims[0].restart(0.0)
        await s.until(lambda: s.gateway.index.num_blocks(worker_id(s.sims[0])) == 0)
        await s.settled()
        await s.talk(6)
        await s.settled()


async def test_gateway_started_late_is_exact_by_replay() -> None:
    async with fleet_story() as first:
        await first.talk(7)
        await first.settled()
        gateway = Gateway(first.gateway.config)
        await gateway.start()
        try:
            second = FleetStory(gateway, first.sims, first.session)
            await second.until(lambda: len(gateway.fleet) == 2)
            await second.settled()
        finally:
            await gateway.stop()


@asynccontextmanager
async def late(first: FleetStory) -> AsyncIterator[FleetStory]:
    """A second gateway, started when the engines are warm and their replay buffers do not reach back."""
    gateway = Gateway(first.gateway.config)
    await gateway.start()
    try:
        second = FleetStory(gateway, first.sims, first.session)
        await second.until(lambda: len(gateway.fleet) == 2)
        await second.until(lambda: second.states() == {StreamState.BLIND})
        yield second
    finally:
        await gateway.stop()


async def test_short_replay_buffer_leaves_the_stream_blind_and_credits_no_missing_block() -> None:
    async with fleet_story(replay_buffer=2) as first:
        await first.talk(8)
        await first.settled()
        async with late(first) as second:
            for sim in first.sims:
                blocks = await first.cached_blocks(sim)
                found, credited = second.known(sim, blocks)
                assert found == credited <= len(blocks)


@pytest.mark.parametrize("flags", [{}, {"event_wire": "array"}, {"hash": "bytes"}, {"kv_blocks": 80}])
async def test_blind_stream_recovers_by_its_own_traffic(flags: dict[str, Any]) -> None:
    """Continued conversations let the new gateway learn what the engines have cached."""
    async with fleet_story(replay_buffer=2, **flags) as first:
        await first.talk(30)
        await first.settled()
        async with late(first) as second:
            for _ in range(2):
                await second.talk(30, num_turns=5)
            await second.credits_nothing_wrong()
            for sim in second.sims:
                cached_blocks = await first.cached_blocks(sim)
                assert second.known(sim, cached_blocks)[0] > len(cached_blocks) // 2
            await second.emptied()


async def test_restarted_engine_without_replays_is_known_to_be_empty() -> None:
    async with fleet_story(replay=False) as s:
        await s.until_subscribed()
        await s.talk(40)
        await s.settled()
        for down_s in (0.0, 0.5):
            await s.sims[0].restart(down_s)
            await s.until(lambda: s.gateway.index.num_blocks(worker_id(s.sims[0])) == 0)
            await s.until_subscribed()
            await s.talk(41)
            await s.settled()


async def test_gap_is_filled_by_replay() -> None:
    async with fleet_story() as s:
        await s.talk(42, num_conversations=2)
        for sim in s.sims:
            await s.faults(sim, lose={"next": 2})
        await s.talk(43, num_conversations=3)
        await s.settled()
        counts = dict(s.gateway.roster.stream_counts())
        assert sum(count.num_gaps for count in counts.values()) > 0


async def holds_back_a_replay(s: FleetStory, sim: Sim) -> bool:
    """Return whether the engine holds back a replay that the gateway asked for."""
    async with s.session.get(f"{sim.url}/sim/stats") as answer:
        return bool((await answer.json())["ranks"][0]["held_replays"])


async def removed_behind_a_gap(s: FleetStory, sim: Sim) -> set[int]:
    """Blocks of a lost batch that the engine evicts while it holds back the replay of that batch."""
    before = await s.cached_blocks(sim)
    await s.faults(sim, lose={"next": 1}, hold_replays=True)
    await s.ask(sim, 700)
    lost = await s.cached_blocks(sim) - before
    await s.ask(sim, 701)
    await until(lambda: holds_back_a_replay(s, sim))
    for seed in range(710, 760):
        await s.ask(sim, seed)
    gone = lost - await s.cached_blocks(sim)
    assert gone
    return gone


async def test_replay_after_the_removals_restores_no_removed_block() -> None:
    async with fleet_story(kv_blocks=60) as s:
        await s.talk(61, num_conversations=2, num_turns=2)
        await s.settled()
        gone = [await removed_behind_a_gap(s, sim) for sim in s.sims]
        assert s.states() == {StreamState.CATCHING_UP}
        for sim in s.sims:
            await s.faults(sim)
        await s.settled()
        assert [s.known(sim, blocks)[0] for sim, blocks in zip(s.sims, gone, strict=True)] == [0, 0]


async def test_abandoned_replay_restores_no_removed_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay comes when the stream is BLIND already; the next replay reports all cached blocks."""
    short_times = ZmqTimes(replay_s=0.1, quiet_s=0.1, knock_s=0.1)
    monkeypatch.setattr(feeds, "ZmqFeed", partial(ZmqFeed, times=short_times))
    async with fleet_story(kv_blocks=60) as s:
        await s.talk(62, num_conversations=2, num_turns=2)
        await s.settled()
        gone = [await removed_behind_a_gap(s, sim) for sim in s.sims]
        await s.until(lambda: s.states() == {StreamState.BLIND})
        await s.credits_nothing_wrong()
        for sim in s.sims:
            await s.faults(sim)
        await s.settled()
        assert [s.known(sim, blocks)[0] for sim, blocks in zip(s.sims, gone, strict=True)] == [0, 0]


async def test_gap_without_replays_makes_the_stream_blind_until_its_traffic_recovers_it() -> None:
    async with fleet_story(replay=False) as s:
        await s.until_subscribed()
        await s.talk(44, num_conversations=2)
        await s.settled()
        for sim in s.sims:
            await s.faults(sim, lose={"next": 2})
        await s.talk(45, num_conversations=3)
        assert StreamState.BLIND in s.states()
        await s.talk(44, num_conversations=2, num_turns=5)
        await s.credits_nothing_wrong()
        await s.emptied()


@pytest.mark.parametrize("flags", [{}, {"replay_buffer": 2}])
async def test_adapters_and_salts_share_no_prefix_with_the_base_model(flags: dict[str, Any]) -> None:
    async with fleet_story(lora=("a",), **flags) as s:
        (body,) = conversations(46).turns(1)
        for changes in ({}, {"cache_salt": "s"}, {"model": "a"}, {"model": "a", "cache_salt": "s"}):
            first, second = [await s.chat(body | changes | {"max_tokens": 4}) for _ in range(2)]
            cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, second)]
            assert cached[0] == 0 < cached[1]
            assert second["worker"] == first["worker"]
        await s.settled()
        assert sum(s.gateway.metrics.worker(worker_id(sim)).prediction_error_tokens for sim in s.sims) == 0


async def test_index_is_exact_where_batches_remove_blocks_before_they_store() -> None:
    """Removals come first in a batch, one hash each, the last block of a prompt before its first."""
    async with fleet_story(kv_blocks=60) as s:
        for seed in range(50, 60):
            await s.talk(seed, num_conversations=1, num_turns=2)
        await s.settled()
        applied = [s.gateway.index.applied(worker_id(sim)) for sim in s.sims]
        assert sum(each.num_removed for each in applied) > 0  # of either worker: ties are broken by chance
        assert not any(each.num_unknown_removals for each in applied)


async def test_decisions_assume_blocks_where_the_engine_publishes_no_events() -> None:
    async with fleet_story(events=False) as s:
        turns = list(conversations(9).turns(4))
        completions = [await s.chat(body | {"max_tokens": 4}) for body in turns]
        assert len({each["worker"] for each in completions}) == 1
        assert s.states() == {None}
        cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in completions]
        assert all(later > 0 for later in cached[1:])


async def test_predicted_cached_tokens_equal_those_the_engine_reports() -> None:
    """Requests follow one another, so each prediction sees all blocks of the requests before."""
    async with fleet_story() as s:
        for seed in range(5):
            for body in conversations(20 + seed).turns(3):
                await s.chat(body | {"max_tokens": 8})
        await s.settled()
        metrics = [s.gateway.metrics.worker(worker_id(sim)) for sim in s.sims]
        assert sum(m.num_reported for m in metrics) == 15
        assert sum(m.reported_cached_tokens for m in metrics) > 0
        assert sum(m.prediction_error_tokens for m in metrics) == 0


async def test_conversations_are_predicted_rightly_where_the_engine_publishes_no_events() -> None:
    """Each turn repeats the answer before, of 64 tokens that were never sent there: unknown, and no error."""
    async with fleet_story(events=False) as s:
        for seed in range(4):
            (body,) = conversations(60 + seed).turns(1)
            for turn in range(5):
                completion = await s.chat(body | {"max_tokens": 64})
                body["messages"] += [
                    {"role": "assistant", "content": completion["choices"][0]["message"]["content"]},
                    {"role": "user", "content": f"And then, {seed} and {turn}?"},
                ]
        metrics = [s.gateway.metrics.worker(worker_id(sim)) for sim in s.sims]
        assert sum(m.num_reported for m in metrics) == 20
        assert sum(m.unknown_cached_tokens for m in metrics) >= 16 * 16  # a block of each later turn
        assert sum(m.prediction_error_tokens for m in metrics) == 0
        assert not any(w.causes for _, w in s.gateway.parts.verification.verifier.watched())
