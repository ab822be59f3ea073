"""A master of several servers dies, behind Sentinels or in a Cluster, and a replica takes its place: gateways
go on meanwhile, find it, and what each knows stays, or becomes again, the engines' own caches. Whether each
has all of it itself, or all of it lies in Redis.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.redis.serving import Several, cluster, sentinels
from tests.stories import test_replica as replicas
from tests.stories import test_tree as tree
from tests.stories.test_lost_redis import EQUAL, are_one_again
from tests.stories.test_replica import num_held, settled

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

Are = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Sharing:
    """How gateways share what they know. `are_right` before the failover, `are_one` behind it."""

    several: Callable[..., AbstractAsyncContextManager[Any]]
    beside: Callable[..., AbstractAsyncContextManager[Any]]
    are_right: Are
    are_one: Are
    talk: Callable[[Any, int], Awaitable[None]]
    knows_alone: bool
    """What is true without Redis too."""


async def is_exact(*all_of_them: tree.TreeStory) -> None:
    """Each worker is read by one of them, and all are answered what is true."""
    first = all_of_them[0]
    await first.until(lambda: sum(map(num_held, all_of_them)) == len(first.sims))
    for told in all_of_them:
        await told.settled()


async def is_answered(told: tree.TreeStory, seed: int) -> None:
    before = told.num_answered
    await told.talk(seed)
    assert told.num_answered > before


async def talk(told: replicas.Story, seed: int) -> None:
    await told.talk(seed)


REPLICATED = Sharing(
    partial(replicas.several, pace=EQUAL),
    partial(replicas.beside, pace=EQUAL),
    settled,
    are_one_again,
    talk,
    knows_alone=True,
)
TREE = Sharing(tree.several, tree.beside, is_exact, is_exact, is_answered, knows_alone=False)


def of_a_cluster() -> AbstractContextManager[Several]:
    return cluster("{kvgate}")


@pytest.mark.parametrize("start", [sentinels, of_a_cluster])
@pytest.mark.parametrize("sharing", [REPLICATED, TREE], ids=["replicated", "tree"])
async def test_a_replica_takes_over(
    sharing: Sharing, start: Callable[[], AbstractContextManager[Several]]
) -> None:
    with start() as servers:
        async with sharing.several(servers) as (first, (one, other)):
            await sharing.talk(other, 140)
            await sharing.talk(one, 141)
            await sharing.are_right(one, other)
            servers.master.kill()
            await asyncio.gather(one.talk(142, 3, 2), other.talk(143, 3, 2))
            if sharing.knows_alone:
                await sharing.are_right(one, other)
            await one.until(servers.is_replaced)
            await sharing.are_one(one, other)
            for seed, told in enumerate((other, one), 144):
                await sharing.talk(told, seed)
            async with sharing.beside(first, servers) as late:
                await sharing.are_one(one, other, late)
                await sharing.talk(late, 146)
                await sharing.are_one(one, other, late)


@pytest.mark.parametrize("sharing", [REPLICATED, TREE], ids=["replicated", "tree"])
async def test_a_replica_that_lags_takes_over(sharing: Sharing) -> None:
    """What it never heard of is told again, also to those who know it from the old master; what it heard of
    and is no longer so is not told any more."""
    with sentinels() as servers:
        async with sharing.several(servers, kv_blocks=60) as (first, (one, other)):
            await one.talk(147)
            await sharing.are_right(one, other)
            with servers.replica.paused():
                servers.master.ask("CLIENT", "KILL", "TYPE", "replica")
                await one.talk(148)
                await sharing.are_right(one, other)
                servers.master.kill()
            await other.talk(149, 3, 2)
            await one.until(servers.is_replaced)
            await sharing.are_one(one, other)
            async with sharing.beside(first, servers) as late:
                await sharing.talk(late, 150)
                await sharing.are_one(one, other, late)
