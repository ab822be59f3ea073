"""Keeps a RadixIndex and its trees together: connections, what is written when, lookups with a deadline.

    lost   connections are opened anew, with pauses; what the server has of ours is unknown, and told again
    open   FLUSH_S after something was applied it is written, each KEEP_S our slots are kept, each SWEEP_S
           some are swept that nobody keeps, each LOOK_S it is read who tells of which worker; of several
           servers it is asked each KEEP_S which is the master, and another one is connected to
    full   the server has no memory left: our slots are given up, since what they say is not true for long,
           and all is told again each FULL_S until there is room; lookups go on

A lookup never fails and never takes longer than its deadline: without an answer the others' workers are not
known to hold anything, as if they had no events, and it is counted. Behind one that had no answer none waits:
they are answered in order.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.base import Losses
from gateway.index.redis_tree.index import RadixIndex
from gateway.index.redis_tree.pipeline import Lane, LaneLost, LaneRefused, open_lane, pack
from gateway.index.redis_tree.tree import KEEP_MS, Forgotten, Lanes, RadixTree
from gateway.redis.client import LOST, foreign, locator
from gateway.redis.keys import SCHEMA, schema_key, trees_key
from gateway.redis.options import Place, RedisOptions
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

FLUSH_S = 0.002
"""What is applied meanwhile is one call; others know it so much later."""
KEEP_S = KEEP_MS / 1000 / 6
SWEEP_S = 1.0
LOOK_S = 0.25
RETRY_S = 0.5
FULL_S = 5.0

NONSENSE = (ValueError, TypeError, IndexError, struct.error)
"""Errors of answers that no script of ours gives: whoever may write to Redis may have written their data."""
FAILED = (Forgotten, LaneLost, LaneRefused, *NONSENSE, *LOST)

OnOwner = Callable[[StreamState | None], None]
"""Called with the stream state that a worker's leader published; None without a leader or without Redis."""


class RadixService:
    """A lookup has `lookup_s`; what is none has the time that the options give."""

    def __init__(
        self, options: RedisOptions, *, lookup_s: float = 0.02, losses: Losses | None = None
    ) -> None:
        self.index = RadixIndex(self._make_tree, losses, on_news=lambda: self._news.set())
        self.index.pause()
        self.is_open = False
        self.num_lookups = 0
        self.failed_lookups = {"timeout": 0, "error": 0, "away": 0}
        self.num_lost = self.num_broken = 0
        self.observe: Callable[[float], None] = lambda seconds: None
        self._options = options
        self._lookup_s = lookup_s
        self._locate = locator(options)
        self._place: Place | None = None  # of several servers
        self._lanes = Lanes(Lane(), Lane())  # not open yet
        self._log = RateLimitedLog(log)
        self._news = asyncio.Event()
        self._full_until: float | None = None
        self._stuck_at: int | None = None  # how many answers there were when one did not come
        self._stuck_until = 0.0
        self._watched: dict[tuple[BlockHash, WorkerId], OnOwner] = {}
        self._models: dict[BlockHash, str] = {}

    def __repr__(self) -> str:
        return f"RadixService(open={self.is_open}, {self.index})"

    def _make_tree(self, root: BlockHash) -> RadixTree:
        return RadixTree(self._lanes, self._options.prefix, root, timeout_s=self._options.timeout_s)

    async def others(self, root: BlockHash, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        """Leading blocks held by workers that are not ours; none where the server does not tell in time."""
        self.num_lookups += 1
        if not self.is_open or self._is_stuck:
            return self._failed("away")
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._lookup_s):
                told = await self.index.others(root, hashes)
        except TimeoutError:
            self._stuck_at = self._lanes.asks.num_answered
            self._stuck_until = time.perf_counter() + self._options.timeout_s
            return self._failed("timeout")
        except FAILED:
            return self._failed("error")
        self.observe(time.perf_counter() - began)
        return told

    @property
    def _is_stuck(self) -> bool:
        """Whether nothing was answered since a lookup's time was over; the answer may have come then."""
        lane = self._lanes.asks
        return self._stuck_at == lane.num_answered and lane.num_waiting > 0

    def _failed(self, how: str) -> Mapping[WorkerId, int]:
        self.failed_lookups[how] += 1
        return {}

    def watch(self, root: BlockHash, worker: WorkerId, model: str, on_owner: OnOwner) -> None:
        """`model` is what people call it."""
        self._watched[root, worker] = on_owner
        self._models[root] = model

    def unwatch(self, root: BlockHash, worker: WorkerId) -> None:
        self._watched.pop((root, worker), None)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_place(), name="master of the index in redis")
            await self._keep_serving()

    async def _keep_place(self) -> None:
        """One that was thought dead, and is not, may take what is written for long."""
        while self._locate:
            await asyncio.sleep(KEEP_S)
            with suppress(*LOST):  # who is served needs nobody who knows by whom
                found = await self._locate()
                if self.is_open and self._place != found:
                    self._log.info("redis: %s:%d is the master now", *found)
                    self._close_lanes()

    async def _keep_serving(self) -> None:
        said = ""
        try:
            while True:
                try:
                    await self._open()
                    self._log.info("the index in Redis is there")
                    said = ""
                    await self._serve()
                except FAILED as exc:
                    why = str(exc) or type(exc).__name__
                    is_new = not said or (isinstance(exc, LaneRefused) and why != said)
                    if self.is_open or is_new:  # else it is lost in other words, on and on
                        self._log.warning(
                            "the index in Redis is away, requests are routed without it: %s", why
                        )
                    self.num_lost += self.is_open
                    said = why if is_new else said
                self._close()
                await asyncio.sleep(RETRY_S)
        finally:
            self._close()

    async def _open(self) -> None:
        """Both to one server: what the one says is about what the other wrote."""
        connection = self._options.connection
        if self._locate:
            self._place = await self._locate()
            connection = {**connection, "host": self._place[0], "port": self._place[1]}
        try:
            self._lanes.asks = await open_lane(connection, self._options.timeout_s)
            self._lanes.writes = await open_lane(connection, self._options.timeout_s)
            async with asyncio.timeout(self._options.timeout_s):
                await self._check_schema()
        except OSError:  # TimeoutError and LaneLost are some
            if self._locate:
                self._locate.not_there()
            raise
        self.index.resume()
        self._full_until, self._stuck_at = None, None
        self.is_open = True

    async def _check_schema(self) -> None:
        """By writing it, which a replica refuses."""
        key, ask = schema_key(self._options.prefix).encode(), self._lanes.writes.ask
        try:
            found = await ask(pack(b"SET", key, SCHEMA, b"NX", b"GET"))
        except LaneRefused as exc:  # a full server tells, but takes nothing
            if not _is_full(exc) or (found := await ask(pack(b"GET", key))) is None:
                raise
        if found not in (None, SCHEMA):
            raise LaneRefused(foreign(found, self._options))

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
                    await self.index.keep()
            except LaneRefused as exc:
                if not _is_full(exc):
                    raise
                await self._give_up(exc)
            if now() >= name_at or len(self.index.trees) != num_named:
                name_at, num_named = now() + KEEP_S, len(self.index.trees)
                await self._name_trees()
            if now() >= sweep_at:
                sweep_at = now() + (0 if await self.index.sweep_trees() else SWEEP_S)
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
            self.index.resume()
        await self.index.flush()
        if self._full_until is not None and now >= self._full_until:
            self._full_until = None
            self._log.info("redis has room again")

    async def _give_up(self, exc: LaneRefused) -> None:
        if self._full_until is None:
            self._log.warning(
                "redis is full, what our workers hold is not told: raise its maxmemory: %s", exc
            )
        self._full_until = asyncio.get_running_loop().time() + FULL_S
        self.index.pause()
        await self.index.flush()  # the slots

    async def _mend(self) -> None:
        for tree in list(self.index.trees.values()):
            if tree.broken and (num := await tree.mend()):
                self.num_broken += num
                self._log.warning("%s: %d edges did not decode, and are written again", tree, num)

    async def _look(self) -> None:
        if not self._lanes.asks.is_open or (self._is_stuck and time.perf_counter() >= self._stuck_until):
            raise LaneLost("the connection for lookups is gone")
        for root, tree in list(self.index.trees.items()):
            owners = await tree.owners()
            for (model, worker), on_owner in list(self._watched.items()):
                if model == root:
                    owner = owners.get(worker)
                    on_owner(owner.state if owner else None)

    async def _name_trees(self) -> None:
        """Where people can find them: nobody walks the keyspace."""
        key = trees_key(self._options.prefix).encode()
        try:
            async with asyncio.timeout(self._options.timeout_s):
                for root in list(self.index.trees):
                    model = self._models.get(root, "").encode()
                    await self._lanes.writes.ask(pack(b"HSET", key, f"{root:016x}".encode(), model))
        except LaneRefused as exc:
            if not _is_full(exc):  # it was named before, or will be
                raise

    def _close(self) -> None:
        self.is_open = False
        self.index.pause()
        self._close_lanes()
        for on_owner in self._watched.values():  # the last look may have come after the feeds lost Redis
            on_owner(None)

    def _close_lanes(self) -> None:
        self._lanes.asks.close()
        self._lanes.writes.close()


def _is_full(exc: LaneRefused) -> bool:
    return str(exc).startswith("OOM")
