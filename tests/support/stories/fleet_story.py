"""Two simulated workers, the gateway in this process, and a client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.blind_recovery import SETTLE_S
from loadtest.ports import sim_ports
from tests.support.patience import patience, until
from tests.support.texts import conversations

DEADLINE_S = patience(20.0)


class FleetStory:
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
        await until(self.is_true)
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

                async def has_cached_all(sim: Sim = sim) -> bool:
                    return self.blocks_by_engine_hash(sim) <= await self.cached_blocks(sim)

                await until(has_cached_all)

    def blocks_by_engine_hash(self, sim: Sim) -> set[int]:
        recovery = self.gateway.parts.streams.recovery_observer.get(worker_id(sim))
        assert recovery is not None
        return {b for b in self.gateway.index.blocks(worker_id(sim)) if b not in recovery.proofs}

    def states(self) -> set[StreamState | None]:
        return {member.stream for member in self.gateway.fleet}


def worker_id(sim: Sim) -> WorkerId:
    return WorkerId(sim.url.removeprefix("http://"))


@asynccontextmanager
async def fleet_story(options: dict[str, Any] | None = None, **sim: Any) -> AsyncIterator[FleetStory]:
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
            s = FleetStory(gateway, sims, session)
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
