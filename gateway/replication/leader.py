"""One worker's events read for all: the lease, what was inherited, and the way to our index and Redis."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import DecodeError
from gateway.core.worker import WorkerId
from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.base import Feed
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import Turns
from gateway.redis.client import LOST
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.journal import Journal, Reader
from gateway.replication.log_writer import LogWriter
from gateway.replication.messages import Update
from gateway.replication.rank_store import Rank, Shelf
from gateway.replication.redis_log import START, Entry, Lease, WorkerLog
from gateway.replication.takeover import Heritage, inherit
from gateway.runtime.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from gateway.replication.session import ReplicaCounts, Shared

_log = logging.getLogger("kvgate.ingest")

RELEASE_S = 0.5
"""To give a lease back when stopping; else it expires by itself."""


class LeaseLost(Exception):
    """Another gateway has it."""


class Holding:
    """In this order: `inherit`, `begin`, `open`, `tell`, `run`; `close` at any time, `release` behind it."""

    def __init__(
        self,
        worker: WorkerId,
        root: BlockHash,
        block_size: int,
        log: WorkerLog,
        shared: "Shared",
        lease: Lease,
        counts: "ReplicaCounts",
    ) -> None:
        self._worker = worker
        self._root, self._block_size = root, block_size
        self._log = log
        self._rate_limited = RateLimitedLog(_log)
        self._shared = shared
        self._lease = lease
        self._counts = counts
        self._shelf = Shelf(lambda: self._lease.fence << 16)
        self._news, self._is_there = asyncio.Event(), asyncio.Event()
        self._is_there.set()
        self._regaining = asyncio.Lock()
        self._rank: Rank | None = None
        self._reader: Reader | None = None
        self._heritage: Heritage | None = None
        self._is_scheduled = self._is_closed = False
        self.feed: Feed | None = None
        self.healing: BlindRecovery | None = None

    def __repr__(self) -> str:
        return f"Holding(fence={self._lease.fence}, {self.writer})"

    @property
    def fence(self) -> int:
        return self._lease.fence

    @property
    def cursor(self) -> Cursor:
        """Behind all that we have read."""
        journal = self._rank.journal if self._rank else None
        return Cursor(journal.epoch, journal.next_seq) if journal else Cursor()

    @property
    def has_told_all(self) -> bool:
        return self._rank is not None and self.writer.has_written_all

    @property
    def num_queued(self) -> int:
        return self.writer.num_queued if self._rank else 0

    async def inherit(self) -> Sequence[Entry]:
        """What lies in Redis, whole or not; nobody else writes now. Raises one of LOST."""
        parts, entries = await self._log.snapshot(), await self._log.read(START)
        told = [(entry.epoch, entry.data) for entry in entries]
        self._heritage = await asyncio.to_thread(inherit, self._root, self._block_size, parts, told)
        self._last = entries[-1].id if entries else START
        self._num_bytes = sum(len(data) for _, data in told), sum(map(len, parts))
        return entries if self._heritage else ()

    async def begin(self, follower: Follower) -> None:
        """With a journal that goes on where the log ends; `follower` is ours, and goes on in it."""
        heritage, shelf = self._heritage, self._shelf
        if heritage is None:
            shelf.add_worker(self._worker, self._root, self._block_size)
            self._rank = shelf.ranks[self._worker]
        else:
            cursor = heritage.cursor
            journal = Journal(heritage.inventory.snapshot, cursor.epoch)
            journal.begin(cursor.epoch, cursor.next_seq, heritage.position)
            journal.status = heritage.status
            self._rank = shelf.take_over(self._worker, heritage.inventory, journal)
            self._counts.num_takeovers += 1
        self.writer = LogWriter(self._log, self._rank, self._renumber)
        self._follower = follower
        if heritage and heritage.position is not None:
            self.writer.go_on(self._last, *self._num_bytes)
            if follower.cursor != self.cursor:  # it knew more than was written, or less
                follower.forget()
                await asyncio.to_thread(self._rank.journal.snapshot)
        elif heritage:
            shelf.reset_worker(self._worker)

    def open(self, open_engine: Callable[[Shelf], tuple[Feed, Subscription]]) -> None:
        """Raises ValueError."""
        feed, subscription = open_engine(self._shelf)
        self.feed, self.healing = feed, subscription.healing
        heritage, stream = self._heritage, subscription.stream
        if heritage is None or heritage.position is None:
            return
        if stream.can_replay:
            is_blind = heritage.status.state is StreamState.BLIND
            stream.adopt(heritage.position, heritage.status.reason if is_blind else None)
            self._shelf.take_back_proofs(self._worker)
        else:  # nothing proves that it is the same stream
            self._shelf.reset_worker(self._worker)

    def tell(self, take: Callable[[Update], None], turns: Turns) -> None:
        """Our index from now on, in turn with all who read events."""
        assert self._rank
        self._take, self._turns = take, turns
        self._rank.changed.add(self._changed)
        self._follow()
        self._changed()

    def _follow(self) -> None:
        assert self._rank
        cursor = self._follower.cursor
        self._reader = self._rank.journal.read(cursor.epoch, cursor.next_seq)

    def _changed(self) -> None:
        self._news.set()
        if not (self._is_scheduled or self._is_closed):
            self._is_scheduled = True
            self._turns.add(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._take_next():
            self._is_scheduled = True
            self._turns.add(self._pump)

    def _take_next(self) -> bool:
        """One message into our index; False if there is none."""
        if self._is_closed or self._reader is None or (data := self._reader.next()) is None:
            return False
        try:
            self._take(decode(data))
        except (DecodeError, LogError) as exc:  # what we told ourselves
            self._rate_limited.error("worker %s: begun anew with its own snapshot: %s", self._worker, exc)
            self._follower.forget()
            self._follow()
        return True

    async def run(self) -> None:
        """Until the lease is lost, which raises LeaseLost."""
        is_lost = False
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease(), name=f"lease of {self._worker}")
                group.create_task(self._keep_writing(), name=f"log of {self._worker}")
        except* LeaseLost:
            is_lost = True  # what is raised in here is a group again
        if is_lost:
            raise LeaseLost

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._shared.times.renew_s)
            lease, before = self._lease, self.writer.last
            try:
                last = await self._log.renew(lease)
                if last is None:
                    await self._regain(lease)
            except LOST as exc:
                self._is_away(exc)
                continue
            self._shared.trouble.over(self._worker)
            self._is_there.set()
            if last is not None and before is not None and last != before == self.writer.last:
                self.writer.tear()  # somebody else wrote there, or a part was lost
                self._news.set()

    def _is_away(self, exc: BaseException) -> None:
        self._is_there.clear()
        self._shared.trouble.tell(self._worker, exc)

    async def _keep_writing(self) -> None:
        while True:
            await self._news.wait()
            await self._is_there.wait()
            self._news.clear()
            lease = self._lease
            try:
                if await self.writer.write(lease) or lease is not self._lease:
                    continue
                self._counts.num_fenced += 1
                await self._regain(lease)
            except LOST as exc:
                self._is_away(exc)
            self._news.set()

    async def _regain(self, lease: Lease) -> None:
        """It has expired, or all was lost; somebody else may have it."""
        async with self._regaining:
            if self._lease is not lease:
                return
            again = await self._shared.acquire(self._log, if_known=False)
            if not isinstance(again, Lease):
                raise LeaseLost
            self._lease = again
            self._news.set()

    def _renumber(self) -> None:
        """Another epoch of what we hold. Our index knows all of it, and goes on."""
        assert self._rank
        while self._take_next():
            pass
        journal, shelf = self._rank.journal, self._shelf
        knows_all = self._follower.cursor == self.cursor
        self._counts.num_rewrites += 1
        journal.begin(shelf.next_epoch(), 0, journal.position)
        if knows_all:
            self._follower.cursor = self.cursor
        self._follow()

    def close(self) -> None:
        """Nothing is read of the worker any more."""
        self._is_closed = True
        if self.feed:
            self.feed.stop()
            self.feed = None

    async def release(self) -> None:
        with suppress(*LOST):
            async with asyncio.timeout(RELEASE_S):
                await self._log.release(self._lease)
