"""A master of several servers dies, behind Sentinels or in a Cluster, and a replica takes its place: gateways
go on meanwhile, find it, and every index stays the engines' own caches.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.redis.serving import Several, cluster, sentinels
from tests.test_lost_redis_stories import EQUAL, are_one_again
from tests.test_replica_stories import beside, settled, several

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def of_a_cluster() -> AbstractContextManager[Several]:
    return cluster("{kvgate}")


@pytest.mark.parametrize("start", [sentinels, of_a_cluster])
async def test_a_replica_takes_over(start: Callable[[], AbstractContextManager[Several]]) -> None:
    with start() as servers:
        async with several(servers, pace=EQUAL) as (first, (reads, follows)):
            await reads.talk(140)
            await settled(reads, follows)
            servers.master.kill()
            await follows.talk(141, 3, 2)
            await settled(reads, follows)
            await reads.until(servers.is_replaced)
            await are_one_again(reads, follows)
            await reads.talk(142)
            async with beside(first, servers, EQUAL) as late:
                await are_one_again(reads, follows, late)


async def test_a_replica_that_lags_takes_over() -> None:
    """What it never heard of is told again, also to those who know it from the old master."""
    with sentinels() as servers:
        async with several(servers, pace=EQUAL) as (first, (reads, follows)):
            await reads.talk(143)
            await settled(reads, follows)
            with servers.replica.paused():
                servers.master.ask("CLIENT", "KILL", "TYPE", "replica")
                await reads.talk(144)
                await settled(reads, follows)
                servers.master.kill()
            await follows.talk(145, 3, 2)
            await reads.until(servers.is_replaced)
            await are_one_again(reads, follows)
            async with beside(first, servers, EQUAL) as late:
                await late.talk(146)
                await are_one_again(reads, follows, late)
