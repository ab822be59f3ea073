"""The gateway before simulated engines that lose, repeat, delay and evict: the index stays exact.

After each story the index has, for every worker, exactly the blocks that its engine has cached.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.discovery import feeds
from gateway.index.blind_recovery import SETTLE_S
from gateway.ingest.zmq import ZmqFeed, ZmqTimes
from loadtest.ports import sim_ports
from tests.support.patience import patience, until
from tests.support.texts import conversations

pytestmark = pytest.mark.process

DEADLINE_S = patience(20.0)


class Story:
    """Two simulated workers, the gateway in this process, and a client."""

    def __init__(self, gateway: Gateway, sims: list[Sim], session: aiohttp.ClientSession) -> None:
        self.gateway, self.sims, self.session = gateway, sims, session
        self.url = f"http://127.0.0.1:{gateway.port}"

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            completion: dict[str, Any] = await answer.json()
            assert answer.status == 200, completion
            return completion | {"worker": answer.headers["x-kvgate-worker"]}

    async def ask(self, sim: Sim, seed: int) -> None:
        """Send the engine itself a prompt that shares no prefix with another seed's."""
        (body,) = conversations(seed).turns(1)
        async with self.session.post(
            f"{sim.url}/v1/chat/completions", json=body | {"max_tokens": 4}
        ) as answer:
            assert answer.status == 200, await answer.text()

    async def talk(self, seed: int, num_conversations: int = 6, num_turns: int = 4) -> None:
        """Conversations side by side, so that batches of several requests mix."""

        async def converse(i: int) -> None:
            for body in conversations(seed * 100 + i).turns(num_turns):
                await self.chat(body | {"max_tokens": 8})

        await asyncio.gather(*map(converse, range(num_conversations)))

    async def faults(self, sim: Sim, **plan: Any) -> None:
        async with self.session.post(f"{sim.url}/sim/faults", json=plan) as answer:
            assert answer.status == 200, await answer.text()

    async def until(self, is_true: Callable[[], object]) -> None:
        await until(is_true)

    async def cached_blocks(self, sim: Sim) -> set[int]:
        """Block hashes of all that the engine reports as cached (`/sim/cache`)."""
        async with self.session.get(f"{sim.url}/sim/cache") as answer:
            media = await answer.json()
        return {int(block) for _, block, _ in media["0"]}

    def known(self, sim: Sim, blocks: set[int]) -> tuple[int, int]:
        """How many of `blocks` the index credits the worker with, and how many it has in all."""
        worker = worker_id(sim)
        index = self.gateway.index
        return len(blocks.intersection(index.blocks(worker))), index.num_blocks(worker)

    async def is_true(self) -> bool:
        for sim in self.sims:
            blocks = await self.cached_blocks(sim)
            if self.known(sim, blocks) != (len(blocks), len(blocks)):
                return False
        return True

    async def settled(self) -> None:
        """Wait until the index has exactly the engines' blocks and every stream is EXACT."""
        async with asyncio.timeout(DEADLINE_S):
            while not await self.is_true():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await self.until(lambda: self.states() == {StreamState.EXACT})

    async def emptied(self) -> None:
        """Clear all engine caches; the index forgets every block, proven ones too, and is exact again."""
        for sim in self.sims:
            async with self.session.post(f"{sim.url}/reset_prefix_cache") as answer:
                assert (await answer.json())["success"]
        await self.talk(31)
        await self.settled()

    async def until_subscribed(self) -> None:
        """Wait until the gateway is subscribed to all engines, which replay nothing of the time before."""

        def are_connected() -> bool:
            feeds = [feed for endpoint in self.gateway.roster for feed, _ in endpoint.feeds.values()]
            return len(feeds) == len(self.sims) and all(feed.is_connected for feed in feeds)

        await self.until(are_connected)
        await asyncio.sleep(0.2)

    async def credits_nothing_wrong(self) -> None:
        """Once BLIND recovery has settled, engines have cached all blocks known by an engine hash."""
        await asyncio.sleep(2 * SETTLE_S)
        async with asyncio.timeout(DEADLINE_S):
            for sim in self.sims:
                while not self.blocks_by_engine_hash(sim) <= await self.cached_blocks(sim):  # noqa: ASYNC110 - events are on their way
                    await asyncio.sleep(0.1)

    def blocks_by_engine_hash(self, sim: Sim) -> set[int]:
        recovery = self.gateway.parts.streams.recovery_observer.get(worker_id(sim))
        assert recovery is not None
        return {b for b in self.gateway.index.blocks(worker_id(sim)) if b not in recovery.proofs}

    def states(self) -> set[StreamState | None]:
        return {member.stream for member in self.gateway.fleet}


def worker_id(sim: Sim) -> WorkerId:
    return WorkerId(sim.url.removeprefix("http://"))


@asynccontextmanager
async def story(options: dict[str, Any] | None = None, **sim: Any) -> AsyncIterator[Story]:
    """A gateway before two simulated engines; `options` override the gateway's, `sim` the engines'."""
    flags = {"kv_blocks": 200, "prefill_tokens_per_s": 1e6, "decode_tokens_per_s": 2000.0} | sim
    num_ranks = flags.get("dp_size", 1)
    sims = [await Sim(SimConfig(seed=seed, **sim_ports(num_ranks), **flags)).start() for seed in range(2)]
    given = {
        "worker": [sim.url for sim in sims],
        "tokenizer": [str(bundled_tokenizer())],
        "port": 0,
        "admin_port": 0,
        "expose_headers": True,
        "probe_interval_s": 0.2,
        "events_replay_port": 0,
    }
    gateway = Gateway(config_of(**(given | (options or {}))))
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            s = Story(gateway, sims, session)
            await s.until(lambda: len(gateway.fleet) == sum(sim.config.dp_size for sim in sims))
            # Only events from now on are sure to be received.
            known = StreamState.EXACT if flags.get("events", True) else None
            if not flags.get("replay", True):
                known = StreamState.BLIND  # until the first batch, which is the engine's first
            await s.until(lambda: s.states() == {known})
            yield s
    finally:
        await gateway.stop()
        for each in sims:
            await each.stop()


@pytest.mark.parametrize("flags", [{}, {"event_wire": "array"}, {"hash": "bytes"}, {"kv_blocks": 60}])
async def test_index_is_exact_after_traffic_with_evictions(flags: dict[str, Any]) -> None:
    async with story(**flags) as s:
        await s.talk(1)
        await s.settled()
        await s.talk(2)
        await s.settled()


@pytest.mark.parametrize("fault", ["lose", "delay", "duplicate", "reorder"])
async def test_index_is_exact_after_faulty_events(fault: str) -> None:
    async with story() as s:
        for sim in s.sims:
            plan = {fault: {"probability": 0.3}}
            await s.faults(sim, **plan, **({"delay_s": 0.05} if fault == "delay" else {}))
        await s.talk(3, num_turns=5)
        for sim in s.sims:
            await s.faults(sim)
        await s.talk(4)
        await s.settled()


async def test_index_forgets_a_restarted_engine_and_becomes_exact_again() -> None:
    async with story() as s:
        await s.talk(5)
        await s.settled()
        await s.sims[0].restart(0.0)
        await s.until(lambda: s.gateway.index.num_blocks(worker_id(s.sims[0])) == 0)
        await s.settled()
        await s.talk(6)
        await s.settled()


async def test_gateway_started_late_is_exact_by_replay() -> None:
    async with story() as first:
        await first.talk(7)
        await first.settled()
        gateway = Gateway(first.gateway.config)
        await gateway.start()
        try:
            second = Story(gateway, first.sims, first.session)
            await second.until(lambda: len(gateway.fleet) == 2)
            await second.settled()
        finally:
            await gateway.stop()


@asynccontextmanager
async def late(first: Story) -> AsyncIterator[Story]:
    """A second gateway, started when the engines are warm and their replay buffers do not reach back."""
    gateway = Gateway(first.gateway.config)
    await gateway.start()
    try:
        second = Story(gateway, first.sims, first.session)
        await second.until(lambda: len(gateway.fleet) == 2)
        await second.until(lambda: second.states() == {StreamState.BLIND})
        yield second
    finally:
        await gateway.stop()


async def test_short_replay_buffer_leaves_the_stream_blind_and_credits_no_missing_block() -> None:
    async with story(replay_buffer=2) as first:
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
    async with story(replay_buffer=2, **flags) as first:
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
    async with story(replay=False) as s:
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
    async with story() as s:
        await s.talk(42, num_conversations=2)
        for sim in s.sims:
            await s.faults(sim, lose={"next": 2})
        await s.talk(43, num_conversations=3)
        await s.settled()
        counts = dict(s.gateway.roster.stream_counts())
        assert sum(count.num_gaps for count in counts.values()) > 0


async def holds_back_a_replay(s: Story, sim: Sim) -> bool:
    """Return whether the engine holds back a replay that the gateway asked for."""
    async with s.session.get(f"{sim.url}/sim/stats") as answer:
        return bool((await answer.json())["ranks"][0]["held_replays"])


async def removed_behind_a_gap(s: Story, sim: Sim) -> set[int]:
    """Blocks of a lost batch that the engine evicts while it holds back the replay of that batch."""
    before = await s.cached_blocks(sim)
    await s.faults(sim, lose={"next": 1}, hold_replays=True)
    await s.ask(sim, 700)
    lost = await s.cached_blocks(sim) - before
    await s.ask(sim, 701)
    async with asyncio.timeout(DEADLINE_S):
        while not await holds_back_a_replay(s, sim):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for seed in range(710, 760):
        await s.ask(sim, seed)
    gone = lost - await s.cached_blocks(sim)
    assert gone
    return gone


async def test_replay_after_the_removals_restores_no_removed_block() -> None:
    async with story(kv_blocks=60) as s:
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
    async with story(kv_blocks=60) as s:
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
    async with story(replay=False) as s:
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
    async with story(lora=("a",), **flags) as s:
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
    async with story(kv_blocks=60) as s:
        for seed in range(50, 60):
            await s.talk(seed, num_conversations=1, num_turns=2)
        await s.settled()
        applied = [s.gateway.index.applied(worker_id(sim)) for sim in s.sims]
        assert sum(each.num_removed for each in applied) > 0  # of either worker: ties are broken by chance
        assert not any(each.num_unknown_removals for each in applied)


async def test_decisions_assume_blocks_where_the_engine_publishes_no_events() -> None:
    async with story(events=False) as s:
        turns = list(conversations(9).turns(4))
        completions = [await s.chat(body | {"max_tokens": 4}) for body in turns]
        assert len({each["worker"] for each in completions}) == 1
        assert s.states() == {None}
        cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in completions]
        assert all(later > 0 for later in cached[1:])


async def test_predicted_cached_tokens_equal_those_the_engine_reports() -> None:
    """Requests follow one another, so each prediction sees all blocks of the requests before."""
    async with story() as s:
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
    async with story(events=False) as s:
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
