"""Paths of blocks, and two gateways of one tree in Redis."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis

from gateway.commands.index_survey import Survey
from gateway.core.blocks import BlockHash, hash_blocks, root_hash, tokens_of
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.service import RadixService
from gateway.redis.client import open_client
from gateway.redis.keys import WorkerKeys
from gateway.replication.redis_log import WorkerLog
from tests.support.patience import until
from tests.support.redis_index import Radix, TreeIndex
from tests.support.redis_servers import Server

A, B, C = (WorkerId(f"{name}:1") for name in "abc")
ROOT = root_hash("m")


def path_hashes(path: Sequence[int]) -> list[BlockHash]:
    return hash_blocks(tokens_of(path), 1, ROOT)


def stored(path: Sequence[int], first: int) -> BlocksStored:
    """The blocks of a path from position `first` on; each engine hash is the block's own hash."""
    names = path_hashes(path)
    return BlocksStored(names[first:], names[first - 1] if first else None, tokens_of(path[first:]), 1)


def removed(path: Sequence[int], positions: Sequence[int]) -> BlocksRemoved:
    names = path_hashes(path)
    return BlocksRemoved([names[i] for i in positions])


def pair(radix: Radix) -> tuple[TreeIndex, TreeIndex]:
    """Two gateways of one tree: the first leads A and B, the second leads C."""
    ours = radix.index()
    theirs = TreeIndex(radix, ours.prefix)
    for index, workers in ((ours, (A, B)), (theirs, (C,))):
        for worker in workers:
            index.add_worker(worker, ROOT, 1)
    return ours, theirs


PATIENCE_S = 30.0
"""Timeout with which a busy machine does not look like a server that is down."""


@asynccontextmanager
async def running_service(
    server: Server, *workers: WorkerId, prefix: str = "s", **options: Any
) -> AsyncIterator[RadixService]:
    options = {"redis_prefix": prefix, "redis_timeout_s": PATIENCE_S} | options
    ours = RadixService(server.options(**options), lookup_s=PATIENCE_S)
    for worker in workers:
        ours.index.add_worker(worker, ROOT, 1)
        ours.index.publication.publish(worker, 1, StreamState.EXACT)
    task = asyncio.get_running_loop().create_task(ours.run())
    try:
        yield ours
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)


PATH = [7] * 40


@asynccontextmanager
async def surveying(server: Server) -> AsyncIterator[tuple[Survey, "Redis"]]:
    options = server.options()
    client = open_client(options)
    try:
        yield Survey(client, options), client
    finally:
        await client.aclose()


@asynccontextmanager
async def reported(server: Server) -> AsyncIterator[RadixService]:
    """Index where A and B share a run; C has a lease holder and no published blocks."""
    async with running_service(server, A, B, prefix="kvgate") as service, surveying(server) as (_, client):
        service.watch(ROOT, A, "model-m", lambda state: None)
        service.index.apply(A, stored(PATH, 0))
        service.index.apply(B, stored(PATH[:30], 0))
        service.index.publication.publish(B, 1, StreamState.BLIND)
        for worker in (A, C):
            keys = WorkerKeys.of("kvgate", ROOT, 16, worker)
            assert await WorkerLog(client, keys, "host:1:ab", lease_s=60).acquire(if_known=False)
            server.ask("SADD", "kvgate:workers", keys.base)

        async def is_published() -> bool:
            return (
                bool(server.ask("HGET", "kvgate:trees", f"{ROOT:016x}"))
                and not service.index.publication.num_queued
            )

        await until(is_published)
        yield service
