"""Gateways before simulated engines with `--index redis`: the tree in a real Redis is the engines' own
caches, block for block, whoever reads their events, and each gateway routes by it without a copy.
"""

import asyncio
import signal
from functools import partial

import pytest

from engines.sim import Sim
from gateway import cli
from gateway.commands.index import run
from gateway.core.blocks import BlockHash
from gateway.core.decision import Decision
from gateway.core.event_stream import StreamState
from gateway.index.redis_tree.browse import Browser
from gateway.index.redis_tree.service import RadixService
from gateway.redis.client import LOST, open_client
from gateway.redis.options import redis_of
from tests.redis.serving import Server, redis_server, server
from tests.stories import test_replica
from tests.stories.test_fleet import Story, story, worker_id
from tests.stories.test_replica import QUICK, feeds, holds, metric, num_held, sums

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process


class TreeStory(Story):
    """What is known is what the tree says."""

    def root(self) -> BlockHash:
        (root,) = self.tree.index.trees.by_root
        return root

    @property
    def tree(self) -> RadixService:
        """The service whose method the backend runs."""
        service = getattr(self.gateway.backend.run, "__self__", None)
        assert isinstance(service, RadixService)
        return service

    async def told(self, sim: Sim) -> set[BlockHash]:
        options = redis_of(self.gateway.config)
        assert options
        client = open_client(options)
        try:
            browser = Browser(client, options.prefix, self.root())
            owner = (await browser.workers()).get(worker_id(sim))
            return await browser.blocks(await browser.visible(owner.slots)) if owner else set()
        finally:
            await client.aclose()

    async def is_true(self) -> bool:
        try:
            for sim in self.sims:
                if await self.told(sim) != await self.held(sim):
                    return False
        except LOST:
            return False
        return True

    @property
    def num_local(self) -> int:
        return sum(self.gateway.index.num_blocks(worker_id(sim)) for sim in self.sims)

    @property
    def num_lookups(self) -> int:
        return self.tree.num_lookups

    @property
    def num_answered(self) -> int:
        return self.num_lookups - sum(self.failed.values())

    @property
    def failed(self) -> dict[str, int]:
        return self.tree.failed_lookups


beside = partial(test_replica.beside, pace=QUICK, kind=TreeStory, index="redis", redis_lookup_timeout_s=0.5)
several = partial(test_replica.several, pace=QUICK, join=beside)
process = partial(test_replica.process, index="redis")


async def test_what_is_cached_through_one_gateway_the_other_finds(server: Server) -> None:
    async with several(server) as (_, (reads, asks)):
        assert (num_held(reads), num_held(asks)) == (2, 0)
        await reads.talk(200)
        for told in (reads, asks):
            await told.settled()
        assert (reads.num_local > 50, asks.num_local) == (True, 0)
        body = {"model": "m", "messages": [{"role": "user", "content": "Now and then. " * 40}]}
        sent = await reads.chat(body | {"max_tokens": 2})
        await reads.settled()
        decisions: list[Decision] = []
        choose, before = asks.gateway.records.add, asks.num_lookups
        asks.gateway.records.add = lambda decision: (decisions.append(decision), choose(decision))[1]  # type: ignore[method-assign]
        found = await asks.chat(body | {"max_tokens": 2})
        assert found["worker"] == sent["worker"]
        assert decisions[0].confirmed_tokens > 100
        assert asks.num_lookups == before + 1
        assert await verified(reads) == await verified(asks) == 0
        assert sum(asks.failed.values()) == 0


async def verified(told: TreeStory) -> int:
    """By `kvgate index verify`, beside the gateway's own index."""
    gateway = told.gateway
    flags = ("--redis", gateway.config.redis.url, "--gateway", f"http://127.0.0.1:{gateway.admin_port}")
    return await run(cli._parser().parse_args(["index", "verify", *flags]), gateway.config)


async def test_who_reads_is_killed(server: Server) -> None:
    """Who asked takes over behind the last batch, by the engines' short buffers, and the tree is whole."""
    sims = story(replay_buffer=40)
    async with sims as first, process(first, server) as reads, beside(first, server) as asks:
        await asks.talk(210)
        await asks.settled()
        reads.process.kill()
        await asks.talk(211, 2, 2)
        await holds(asks)
        await asks.settled()
        assert sums(asks)["num_takeovers"] == 2
        assert asks.num_local > 0
        await asks.talk(212)
        await asks.settled()


async def test_who_reads_is_stopped_past_its_lease_and_then_writes_nothing(server: Server) -> None:
    async with story() as first, process(first, server) as reads, beside(first, server) as takes:
        await takes.talk(220)
        await takes.settled()
        reads.process.send_signal(signal.SIGSTOP)
        await takes.talk(221, 2, 2)  # what it will find in its sockets, and want to write
        await holds(takes)
        await takes.settled()
        before = fences(server, takes)
        reads.process.send_signal(signal.SIGCONT)
        await takes.until(lambda: metric(reads, "replica_holds") == 0)
        await takes.until(lambda: metric(reads, "index_blocks") == 0)
        assert fences(server, takes) == before
        await takes.talk(222)
        await takes.settled()
        assert num_held(takes) == 2


def fences(server: Server, told: TreeStory) -> dict[bytes, bytes]:
    """Under which each worker is told of, and its slots."""
    found = server.ask("HGETALL", f"kvgate:{{{told.root():016x}}}:o")
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {name: value[:8] + value[17:] for name, value in pairs}


def are_catching_up(asks: TreeStory) -> bool:
    """Streams that another gateway led, as far as this one knows; a leader goes on reading without Redis."""
    followed = [feed for feed in feeds(asks) if feed.leader is None]
    return all(feed.stream.state is StreamState.CATCHING_UP for feed in followed)


async def test_redis_is_paused(server: Server) -> None:
    """Requests go on by what each gateway knows itself, none of them waits for long, and all heals."""
    async with several(server) as (_, (reads, asks)):
        await reads.talk(230)
        await asks.settled()
        with server.paused():
            await asyncio.gather(reads.talk(231, 3, 2), asks.talk(232, 3, 2))
            await asks.until(lambda: asks.failed["away"] > 0)
            await asks.until(lambda: are_catching_up(asks))
        await asks.until(lambda: num_held(reads) + num_held(asks) == 2)
        for told in (reads, asks):
            await told.settled()
        before = dict(asks.failed)
        await asks.talk(233)
        await asks.settled()
        assert asks.failed == before


async def test_redis_is_emptied(server: Server) -> None:
    """Who read knows all, and tells it again: the engines' buffers reach back two batches."""
    async with several(server, replay_buffer=2) as (_, (reads, asks)):
        await asks.talk(240)
        await asks.settled()
        server.ask("FLUSHALL")
        for told in (reads, asks):
            await told.settled()
        await asks.talk(241)
        await asks.settled()
        assert (num_held(reads), num_held(asks)) == (2, 0)
        assert [feed.stream.counts.num_resets for feed in feeds(reads)] == [1, 1]


async def test_an_engine_that_restarts_is_forgotten_in_the_tree(server: Server) -> None:
    async with several(server) as (_, (reads, asks)):
        await asks.talk(250)
        await asks.settled()
        await asks.sims[0].restart(0.0)
        await asks.settled()
        assert await asks.told(asks.sims[0]) == set()
        await reads.talk(251)
        for told in (reads, asks):
            await told.settled()
