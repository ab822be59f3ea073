"""A master of several servers dies under `--index redis`, behind Sentinels or in a Cluster, and a replica
takes its place: requests go on meanwhile, and the tree there becomes the engines' own caches.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.redis.serving import Several, sentinels
from tests.test_failover_stories import of_a_cluster
from tests.test_replica_stories import num_held
from tests.test_tree_stories import TreeStory, beside, several

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


async def is_exact(*all_of_them: TreeStory) -> None:
    """Each worker is read by one of them, and all are answered what is true."""
    first = all_of_them[0]
    await first.until(lambda: sum(map(num_held, all_of_them)) == len(first.sims))
    for told in all_of_them:
        await told.settled()


async def is_answered(told: TreeStory, seed: int) -> None:
    before = told.num_answered
    await told.talk(seed)
    assert told.num_answered > before


@pytest.mark.parametrize("start", [sentinels, of_a_cluster])
async def test_a_replica_takes_over(start: Callable[[], AbstractContextManager[Several]]) -> None:
    with start() as servers:
        async with several(servers) as (first, (reads, asks)):
            await is_answered(asks, 260)
            await is_exact(reads, asks)
            servers.master.kill()
            await asyncio.gather(reads.talk(261, 3, 2), asks.talk(262, 3, 2))
            await reads.until(servers.is_replaced)
            await is_exact(reads, asks)
            await is_answered(asks, 263)
            await is_answered(reads, 264)
            async with beside(first, servers) as late:
                await is_exact(reads, asks, late)
                await is_answered(late, 265)
                await is_exact(reads, asks, late)


async def test_a_replica_that_lags_takes_over() -> None:
    """What it never heard of is told again, and what it heard of and is no longer so is not told any more."""
    with sentinels() as servers:
        async with several(servers, kv_blocks=60) as (first, (reads, asks)):
            await reads.talk(266)
            await is_exact(reads, asks)
            with servers.replica.paused():
                servers.master.ask("CLIENT", "KILL", "TYPE", "replica")
                await reads.talk(267)
                await is_exact(reads, asks)
                servers.master.kill()
            await asks.talk(268, 3, 2)
            await reads.until(servers.is_replaced)
            await is_exact(reads, asks)
            async with beside(first, servers) as late:
                await is_answered(late, 269)
                await is_exact(reads, asks, late)
