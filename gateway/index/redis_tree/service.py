"""Service around a RadixIndex and its trees: connections, times of writing, lookups with a deadline.

    lost   connections are reopened, with pauses; the server's copy of our blocks is unknown, so all is
           published again
    open   FLUSH_S after an event was applied it is written; each KEEP_S our slots are prolonged; each SWEEP_S
           some expired slots are swept; each LOOK_S the leader of each worker is read; with several
           servers the master is located each KEEP_S, and a new one is connected to
    full   the server has no memory left: our slots are closed, since their content becomes outdated,
           and all is published again each FULL_S until there is room; lookups go on

A lookup never fails and never takes longer than its deadline: without an answer the others' workers count as
empty, as if they had no events, and the failure is counted. No lookup waits behind one that had no answer:
they are answered in order.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gateway.core.blocks import BlockHash
from gateway.core.causes import cause_of
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.http.url import netloc_of
from gateway.index.base import Losses
from gateway.index.redis_tree.index import RadixIndex
from gateway.index.redis_tree.pipeline import Pipeline, PipelineLost, PipelineRejected, open_pipeline, pack
from gateway.index.redis_tree.tree import KEEP_MS, Pipelines, RadixTree, SlotsLost
from gateway.redis.client import LOST, foreign_schema, locator
from gateway.redis.keys import SCHEMA, schema_key, trees_key
from gateway.redis.options import HostPort, RedisOptions
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

FLUSH_S = 0.002
"""Delay that batches events into one call; other gateways see them so much later."""
KEEP_S = KEEP_MS / 1000 / 6
SWEEP_S = 1.0
LOOK_S = 0.25
RETRY_S = 0.5
FULL_S = 5.0

MALFORMED = (ValueError, TypeError, IndexError, struct.error)
"""Errors of answers that no script of ours gives: any client that may write to Redis may have stored them."""
FAILED = (SlotsLost, PipelineLost, PipelineRejected, *MALFORMED, *LOST)

OnOwner = Callable[[StreamState | None], None]
"""Called with the stream state that a worker's leader published; None without a leader or without Redis."""


class RadixService:
    """Redis index with its connections. A lookup has `lookup_s`; other commands have the timeout of
    `options`."""

    def __init__(
        self, options: RedisOptions, *, lookup_s: float = 0.02, losses: Losses | None = None
    ) -> None:
        self.index = RadixIndex(self._make_tree, losses, on_news=lambda: self._news.set())
        self.index.publication.pause()
        self.is_open = False
        self.num_lookups = 0
        self.failed_lookups = {"timeout": 0, "error": 0, "away": 0}
        self.num_lost = self.num_broken = 0
        self.observe: Callable[[float], None] = lambda seconds: None
        self._options = options
        self._lookup_s = lookup_s
        self._locate = locator(options)
        self._log = RateLimitedLog(log)
        self._master: HostPort | None = None  # of several servers
        self._pipelines = Pipelines(Pipeline(), Pipeline())  # not open yet
        self._news = asyncio.Event()
        self._full_until: float | None = None
        self._stuck_at: int | None = None  # number of answers when one did not come
        self._stuck_until = 0.0
        self._watched: dict[tuple[BlockHash, WorkerId], OnOwner] = {}
        self._models: dict[BlockHash, str] = {}

    def __repr__(self) -> str:
        return f"RadixService(open={self.is_open}, {self.index})"

    def _make_tree(self, root: BlockHash) -> RadixTree:
        return RadixTree(self._pipelines, self._options.prefix, root, timeout_s=self._options.timeout_s)

    async def remote_overlap(self, root: BlockHash, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        """Count leading blocks of other gateways' workers; empty if Redis does not answer in time."""
        self.num_lookups += 1
        if not self.is_open or self._is_stuck:
            return self._failed("away")
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._lookup_s):
                found = await self.index.remote_overlap(root, hashes)
        except TimeoutError:
            self._stuck_at = self._pipelines.asks.num_answered
            self._stuck_until = time.perf_counter() + self._options.timeout_s
            return self._failed("timeout")
        except FAILED:
            return self._failed("error")
        self.observe(time.perf_counter() - began)
        return found

    async def fetch(self, root: BlockHash, hashes: Sequence[BlockHash]) -> None:
        """Look a prompt up, so that the index answers for it; a failed lookup leaves the others' workers
        empty."""
        self.index.remember(hashes, await self.remote_overlap(root, hashes))

    @property
    def _is_stuck(self) -> bool:
        """Return True if nothing was answered since a lookup timed out (its answer may have come since)."""
        pipeline = self._pipelines.asks
        return self._stuck_at == pipeline.num_answered and pipeline.num_waiting > 0

    def _failed(self, how: str) -> Mapping[WorkerId, int]:
        self.failed_lookups[how] += 1
        return {}

    def watch(self, root: BlockHash, worker: WorkerId, model: str, on_owner: OnOwner) -> None:
        """Call `on_owner` at each look with the worker's published state; `model` is the model's name for
        people."""
        self._watched[root, worker] = on_owner
        self._models[root] = model

    def unwatch(self, root: BlockHash, worker: WorkerId) -> None:
        self._watched.pop((root, worker), None)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_master(), name="master of the index in redis")
            await self._keep_serving()

    async def _follow_master(self) -> None:
        """Leave a master that was replaced: one that was thought dead may accept writes for long."""
        while self._locate:
            await asyncio.sleep(KEEP_S)
            with suppress(*LOST):  # an open connection needs no locator
                found = await self._locate()
                if self.is_open and self._master != found:
                    self._log.info("redis: new master %s; reconnecting", netloc_of(*found))
                    self._close_pipelines()

    async def _keep_serving(self) -> None:
        last_reason = ""
        try:
            while True:
                try:
                    await self._open()
                    self._log.info("index in Redis available")
                    last_reason = ""
                    await self._serve()
                except FAILED as exc:
                    why = cause_of(exc)
                    is_new = not last_reason or (isinstance(exc, PipelineRejected) and why != last_reason)
                    if self.is_open or is_new:  # else it is lost in other words, on and on
                        self._log.warning("index in Redis unavailable (%s); routing without it", why)
                    self.num_lost += self.is_open
                    last_reason = why if is_new else last_reason
                self._close()
                await asyncio.sleep(RETRY_S)
        finally:
            self._close()

    async def _open(self) -> None:
        """Open both connections to one server: lookups must see the writes."""
        connection = self._options.connection
        if self._locate:
            self._master = await self._locate()
            connection = {**connection, "host": self._master[0], "port": self._master[1]}
        try:
            self._pipelines.asks = await open_pipeline(connection, self._options.timeout_s)
            self._pipelines.writes = await open_pipeline(connection, self._options.timeout_s)
            async with asyncio.timeout(self._options.timeout_s):
                await self._check_schema()
        except OSError:  # TimeoutError and PipelineLost are OSErrors
            if self._locate:
                self._locate.report_unreachable()
            raise
        self.index.publication.resume()
        self._full_until, self._stuck_at = None, None
        self.is_open = True

    async def _check_schema(self) -> None:
        """Check the schema version by writing it, which a replica refuses."""
        key, ask = schema_key(self._options.prefix).encode(), self._pipelines.writes.ask
        try:
            found = await ask(pack(b"SET", key, SCHEMA, b"NX", b"GET"))
        except PipelineRejected as exc:  # a full server answers reads, but rejects writes
            if not _is_full(exc) or (found := await ask(pack(b"GET", key))) is None:
                raise
        if found not in (None, SCHEMA):
            raise PipelineRejected(foreign_schema(found, self._options))

    async def _serve(self) -> None:
        now = asyncio.get_running_loop().time
        keep_at = sweep_at = look_at = name_at = now()
        num_named = 0
        while True:
            self._news.clear()
            try:
                await self._flush()
                await self._mend()
                if now() >= keep_at:
                    keep_at = now() + KEEP_S
                    await self.index.publication.keep()
            except PipelineRejected as exc:
                if not _is_full(exc):
                    raise
                await self._stop_writing(exc)
            if now() >= name_at or len(self.index.trees.by_root) != num_named:
                name_at, num_named = now() + KEEP_S, len(self.index.trees.by_root)
                await self._name_trees()
            if now() >= sweep_at:
                sweep_at = now() + (0 if await self.index.trees.sweep() else SWEEP_S)
            if now() >= look_at:
                look_at = now() + LOOK_S
                await self._look()
            try:
                async with asyncio.timeout(max(0.0, min(sweep_at, look_at) - now())):
                    await self._news.wait()
                    await asyncio.sleep(FLUSH_S)
            except TimeoutError:
                pass

    async def _flush(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._full_until is not None and now >= self._full_until:
            self.index.publication.resume()
        await self.index.publication.flush()
        if self._full_until is not None and now >= self._full_until:
            self._full_until = None
            self._log.info("redis has memory again; publishing")

    async def _stop_writing(self, exc: PipelineRejected) -> None:
        if self._full_until is None:
            self._log.warning(
                "redis is out of memory (%s); this gateway's blocks are not published: raise its maxmemory",
                exc,
            )
        self._full_until = asyncio.get_running_loop().time() + FULL_S
        self.index.publication.pause()
        await self.index.publication.flush()  # the slots

    async def _mend(self) -> None:
        for tree in list(self.index.trees.by_root.values()):
            if tree.broken and (num := await tree.mend()):
                self.num_broken += num
                self._log.warning("%r: %d edges cannot be decoded; publishing them again", tree, num)

    async def _look(self) -> None:
        if not self._pipelines.asks.is_open or (self._is_stuck and time.perf_counter() >= self._stuck_until):
            raise PipelineLost("the connection for lookups is gone")
        for root, tree in list(self.index.trees.by_root.items()):
            owners = await tree.owners()
            for (model, worker), on_owner in list(self._watched.items()):
                if model == root:
                    owner = owners.get(worker)
                    on_owner(owner.state if owner else None)

    async def _name_trees(self) -> None:
        """Publish the models that have a tree, so that people find them without a walk of the keyspace."""
        key = trees_key(self._options.prefix).encode()
        try:
            async with asyncio.timeout(self._options.timeout_s):
                for root in list(self.index.trees.by_root):
                    model = self._models.get(root, "").encode()
                    await self._pipelines.writes.ask(pack(b"HSET", key, f"{root:016x}".encode(), model))
        except PipelineRejected as exc:
            if not _is_full(exc):  # the model has its name already, or will have
                raise

    def _close(self) -> None:
        self.is_open = False
        self.index.publication.pause()
        self._close_pipelines()
        for on_owner in self._watched.values():  # the last look may have come after the feeds lost Redis
            on_owner(None)

    def _close_pipelines(self) -> None:
        self._pipelines.asks.close()
        self._pipelines.writes.close()


def _is_full(exc: PipelineRejected) -> bool:
    return str(exc).startswith("OOM")
