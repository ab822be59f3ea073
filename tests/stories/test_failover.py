"""Failover of Redis, behind Sentinels or in a Cluster: the master is killed and a replica takes its place.

Gateways go on meanwhile and find the new master. Their view stays exact, or becomes exact again, with a
replicated index as well as with `--index redis`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.support.redis_servers import Several, cluster, sentinels
from tests.support.stories.fleet_story import FleetStory
from tests.support.stories.sharing_gateways import (
    EQUAL,
    all_settled,
    num_led,
    sharing_gateway,
    sharing_gateways,
    until_shared_again,
)
from tests.support.stories.tree_story import TreeStory, tree_gateway, tree_gateways

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

Wait = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Sharing:
    """A way to share an index; `until_shared` waits until the gateways share it again after a failover."""

    gateways: Callable[..., AbstractAsyncContextManager[Any]]
    gateway: Callable[..., AbstractAsyncContextManager[Any]]
    until_exact: Wait
    until_shared: Wait
    talk: Callable[[Any, int], Awaitable[None]]
    knows_alone: bool
    """Gateways keep exact views without Redis."""


async def until_exact(*gateways: TreeStory) -> None:
    """Wait until each worker has one leader, and the tree is exact at every gateway."""
    first = gateways[0]
    await first.until(lambda: sum(map(num_led, gateways)) == len(first.sims))
    for s in gateways:
        await s.settled()


async def talk_with_lookups(s: TreeStory, seed: int) -> None:
    before = s.num_answered
    await s.talk(seed)
    assert s.num_answered > before


async def talk(s: FleetStory, seed: int) -> None:
    await s.talk(seed)


REPLICATED = Sharing(
    partial(sharing_gateways, pace=EQUAL),
    partial(sharing_gateway, pace=EQUAL),
    all_settled,
    until_shared_again,
    talk,
    knows_alone=True,
)
TREE = Sharing(
    tree_gateways,
    tree_gateway,
    until_exact,
    until_exact,
    talk_with_lookups,
    knows_alone=False,
)


def tagged_cluster() -> AbstractContextManager[Several]:
    return cluster("{kvgate}")


@pytest.mark.parametrize("start", [sentinels, tagged_cluster])
@pytest.mark.parametrize("sharing", [REPLICATED, TREE], ids=["replicated", "tree"])
async def test_gateways_share_again_after_a_replica_takes_over(
    sharing: Sharing, start: Callable[[], AbstractContextManager[Several]]
) -> None:
    with start() as servers:
        async with sharing.gateways(servers) as (first, (left, right)):
            await sharing.talk(right, 140)
            await sharing.talk(left, 141)
            await sharing.until_exact(left, right)
            servers.master.kill()
            await asyncio.gather(left.talk(142, 3, 2), right.talk(143, 3, 2))
            if sharing.knows_alone:
                await sharing.until_exact(left, right)
            await left.until(servers.is_replaced)
            await sharing.until_shared(left, right)
            for seed, s in enumerate((right, left), 144):
                await sharing.talk(s, seed)
            async with sharing.gateway(first, servers) as late:
                await sharing.until_shared(left, right, late)
                await sharing.talk(late, 146)
                await sharing.until_shared(left, right, late)


@pytest.mark.parametrize("sharing", [REPLICATED, TREE], ids=["replicated", "tree"])
async def test_gateways_share_again_after_a_lagging_replica_takes_over(sharing: Sharing) -> None:
    """Entries that the replica never received are written again, also for followers that read them from the
    old master; outdated entries that it has are not followed."""
    with sentinels() as servers:
        async with sharing.gateways(servers, kv_blocks=60) as (first, (left, right)):
            await left.talk(147)
            await sharing.until_exact(left, right)
            with servers.replica.paused():
                servers.master.ask("CLIENT", "KILL", "TYPE", "replica")
                await left.talk(148)
                await sharing.until_exact(left, right)
                servers.master.kill()
            await right.talk(149, 3, 2)
            await left.until(servers.is_replaced)
            await sharing.until_shared(left, right)
            async with sharing.gateway(first, servers) as late:
                await sharing.talk(late, 150)
                await sharing.until_shared(left, right, late)
