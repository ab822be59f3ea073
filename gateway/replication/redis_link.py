"""Link of one gateway to the Redis of replication: connections, identity, leases."""

import logging
import os
import secrets
import socket
from dataclasses import dataclass

from gateway.core.blocks import BlockHash
from gateway.core.causes import cause_of
from gateway.core.worker import WorkerId
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


class RedisLink:
    """Connections of one gateway to Redis, and its name there."""

    def __init__(self, options: RedisOptions, times: ReplicaTimes) -> None:
        self.times = times
        self.where = options.where
        self.delays_s = Histogram(DELAY_BOUNDS_S)
        self._options = options
        self._log = RateLimitedLog(log)
        self._client = open_client(options)
        self._waiting = open_client(options, max_connections=1, block_s=BLOCK_S)
        self._gateway = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._is_checked = False
        self._refusal: str | None = None
        self.tail = LogTail(self._waiting, on_other=self._reconnect)
        self.error_reporter = ErrorReporter(self.where, lambda: self.is_lost)

    def __repr__(self) -> str:
        return f"RedisLink({self.where}, {self.tail})"

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

    async def close(self) -> None:
        for client in (self._client, self._waiting):
            await client.aclose()

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
