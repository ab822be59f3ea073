"""Session of one gateway with Redis, shared by its replica feeds: connections, identity, counters."""

import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.block_limits import BlockLimits
from gateway.core.blocks import BlockHash
from gateway.core.causes import cause_of
from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.ingest.time_slices import TimeSlices
from gateway.observability.metrics import Histogram
from gateway.redis.client import LOST, UnusableRedis, check, check_schema, failure, open_client
from gateway.redis.error_reporter import AlreadyReported, ErrorReporter
from gateway.redis.keys import WorkerKeys, workers_key
from gateway.redis.options import RedisOptions
from gateway.replication.redis_log import Lease, WorkerLog
from gateway.replication.redis_tail import BLOCK_S, LogTail
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.runtime.terminal import print_lines

if TYPE_CHECKING:
    from gateway.replication.metrics import ReplicaCollector
    from gateway.replication.replica_feed import OpenEngine, ReplicaFeed

log = logging.getLogger("kvgate.redis")

DELAY_BOUNDS_S = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class ReplicaTimes:
    """Time limits of replication through Redis, in seconds.

    lease_s         validity of a lease that is not renewed: another gateway takes over after that
    renew_s         between two renewals
    ask_s           between two checks whether a lease was released before its end
    grace_s         for a leader that lost the lease with all data to get it back: it has the complete state
    direct_after_s  without Redis before a gateway reads the worker's own events
    retry_s, pause_s  before what failed, or did not fit, is tried again
    patience_s      twice the longest pause of a follower that resyncs again and again
    refused_s       before a gateway that cannot read the worker's events asks for the lease again
    """

    lease_s: float = 2.5
    renew_s: float = 0.5
    ask_s: float = 1.0
    grace_s: float = 1.0
    direct_after_s: float = 2.0
    retry_s: float = 0.2
    pause_s: float = 0.05
    patience_s: float = 5.0
    refused_s: float = 10.0


@dataclass(slots=True, eq=False)
class ReplicaCounts:
    """Counters of one worker's replication."""

    num_takeovers: int = 0
    num_fenced: int = 0
    num_rewrites: int = 0
    num_resyncs: int = 0


class ReplicationSession:
    """Replication through Redis: `index` in each gateway, one leader per worker."""

    def __init__(
        self,
        options: RedisOptions,
        *,
        index: Index,
        assumed: AssumedIndex,
        times: ReplicaTimes = ReplicaTimes(),  # noqa: B008
        make_feed: "Callable[..., ReplicaFeed] | None" = None,
        can_recover: bool = True,
    ) -> None:
        """Session with one Redis. `make_feed` makes a worker's feed, by default a `ReplicaFeed`; with
        `can_recover`, blocks that a request proves can be published."""
        self.times = times
        self.where = options.where
        self.delays_s = Histogram(DELAY_BOUNDS_S)
        self.feeds: dict[WorkerId, ReplicaFeed] = {}
        self._make_feed = make_feed
        self.can_recover = can_recover
        self._options = options
        self._index = index
        self._assumed = assumed
        self._time_slices, self._log = TimeSlices(), RateLimitedLog(log)
        self._client = open_client(options)
        self._waiting = open_client(options, max_connections=1, block_s=BLOCK_S)
        self._gateway = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._is_checked = False
        self._refusal: str | None = None
        self.tail = LogTail(self._waiting, on_other=self._reconnect)
        self.error_reporter = ErrorReporter(self.where, lambda: self.is_lost)

    def __repr__(self) -> str:
        return f"Shared({self.where}, {len(self.feeds)} workers, {self.tail})"

    @property
    def is_lost(self) -> bool:
        return self.tail.is_lost

    async def start(self, tasks: Tasks) -> None:
        """Check Redis and start reading the logs. Waits for a server that is away; raises UnusableRedis for
        one that cannot be used."""
        try:
            await check(self._client, self._options)
            self._is_checked = True
            log.info("redis %s shared, with prefix %s:", self.where, self._options.prefix)
        except LOST as exc:
            log.warning("redis %s unavailable, waiting for it: %s", self.where, cause_of(exc))
        tasks.start("redis", self.tail.run())

    async def print_check(self) -> bool:
        """Print for people whether Redis is usable; returns True if it is."""
        try:
            await check(self._client, self._options)
        except (*LOST, UnusableRedis) as exc:
            print_lines(failure(exc, self.where))
            return False
        finally:
            await self.close()
        print_lines(f"redis: {self.where} usable, with prefix {self._options.prefix}:")
        return True

    def collector(self) -> "ReplicaCollector":
        from gateway.replication.metrics import ReplicaCollector

        return ReplicaCollector(self)

    async def close(self) -> None:
        for client in (self._client, self._waiting):
            await client.aclose()

    def open(
        self,
        worker: Worker,
        open_engine: "OpenEngine",
        on_state: Callable[[WorkerId, StreamState], None],
        tasks: Tasks,
        limits: BlockLimits,
    ) -> "ReplicaFeed":
        feed = self.feeds[worker.id] = self._feed_class(
            worker,
            shared=self,
            index=self._index,
            assumed=self._assumed,
            open_engine=open_engine,
            on_state=on_state,
            time_slices=self._time_slices,
            limits=limits,
        )
        feed.start(tasks)
        return feed

    @property
    def _feed_class(self) -> "Callable[..., ReplicaFeed]":
        if self._make_feed is not None:
            return self._make_feed
        from gateway.replication.replica_feed import ReplicaFeed

        return ReplicaFeed

    def log_of(self, root: BlockHash, block_size: int, worker: WorkerId) -> WorkerLog:
        keys = WorkerKeys.of(self._options.prefix, root, block_size, worker)
        return WorkerLog(self._client, keys, self._gateway, lease_s=self.times.lease_s)

    async def acquire(self, log_: WorkerLog, *, if_known: bool) -> Lease | float | None:
        """Acquire a lease as `WorkerLog.acquire` does, after checking the schema: Redis may be another one
        now, or empty."""
        try:
            await self._check()
            lease = await log_.acquire(if_known=if_known)
            if isinstance(lease, Lease):
                await self._client.sadd(workers_key(self._options.prefix), log_.keys.base)
            return lease
        except LOST:
            self._is_checked = False
            raise

    async def _reconnect(self) -> None:
        """Reconnect, so that all connections lead to the same server."""
        self._is_checked = False
        await self._client.connection_pool.disconnect()

    async def _check(self) -> None:
        """Check the schema. Raises one of LOST also where Redis is unusable, which is logged once."""
        try:
            if self._is_checked:
                await check_schema(self._client, self._options)
            else:
                await check(self._client, self._options)
        except UnusableRedis as exc:
            if self._refusal != str(exc):
                self._refusal = str(exc)
                self._log.error("%s", exc)
            raise AlreadyReported(str(exc)) from exc
        self._refusal, self._is_checked = None, True
