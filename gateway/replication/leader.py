"""Leader of one worker: reads its events for all gateways into the index and into Redis."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import DecodeError
from gateway.core.worker import WorkerId
from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.base import Feed
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.redis.client import LOST
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.journal import Journal, JournalReader
from gateway.replication.log_writer import LogWriter
from gateway.replication.messages import Update
from gateway.replication.rank_store import RankState, RankStore
from gateway.replication.redis_link import RedisLink
from gateway.replication.redis_log import START, Lease, LogEntry, WorkerLog
from gateway.replication.takeover import Takeover, restore
from gateway.runtime.rate_limited_log import RateLimitedLog

_log = logging.getLogger("kvgate.ingest")

RELEASE_S = 0.5
"""Time limit for releasing the lease when stopping; it expires anyway."""


@dataclass(slots=True, eq=False)
class ReplicaCounts:
    """Counters of one worker's replication."""

    num_takeovers: int = 0
    num_fenced: int = 0
    num_rewrites: int = 0
    num_resyncs: int = 0


class LeaseLost(Exception):
    """Another gateway has the lease."""


class Leader:
    """Leadership of one worker. Call in order: `read_log`, `begin`, `open`, `attach_index`, `run`; `close` at
    any time, then `release`."""

    def __init__(
        self,
        worker: WorkerId,
        root: BlockHash,
        block_size: int,
        log: WorkerLog,
        shared: RedisLink,
        lease: Lease,
        counts: ReplicaCounts,
    ) -> None:
        self._worker = worker
        self._root, self._block_size = root, block_size
        self._log = log
        self._rate_limited = RateLimitedLog(_log)
        self._shared = shared
        self._lease = lease
        self._counts = counts
        self._store = RankStore(lambda: self._lease.fence << 16)
        self._news, self._is_redis_up = asyncio.Event(), asyncio.Event()
        self._is_redis_up.set()
        self._regaining = asyncio.Lock()
        self._rank: RankState | None = None
        self._reader: JournalReader | None = None
        self._takeover: Takeover | None = None
        self._is_scheduled = self._is_closed = False
        self.feed: Feed | None = None
        self.recovery: BlindRecovery | None = None

    def __repr__(self) -> str:
        return f"Holding(fence={self._lease.fence}, {self.writer})"

    @property
    def fence(self) -> int:
        return self._lease.fence

    @property
    def cursor(self) -> Cursor:
        """Position behind all events read so far."""
        journal = self._rank.journal if self._rank else None
        return Cursor(journal.epoch, journal.next_seq) if journal else Cursor()

    @property
    def has_written_all(self) -> bool:
        return self._rank is not None and self.writer.has_written_all

    @property
    def num_queued(self) -> int:
        return self.writer.num_queued if self._rank else 0

    async def read_log(self) -> Sequence[LogEntry]:
        """Read the log in Redis, complete or not; no other gateway writes now. Raises one of LOST."""
        parts, entries = await self._log.snapshot(), await self._log.read(START)
        log = [(entry.epoch, entry.data) for entry in entries]
        self._takeover = await asyncio.to_thread(restore, self._root, self._block_size, parts, log)
        self._last = entries[-1].id if entries else START
        self._num_bytes = sum(len(data) for _, data in log), sum(map(len, parts))
        return entries if self._takeover else ()

    async def begin(self, follower: Follower) -> None:
        """Start a journal that continues where the log ends; `follower` is this gateway's, and continues in
        it."""
        takeover, store = self._takeover, self._store
        if takeover is None:
            store.add_worker(self._worker, self._root, self._block_size)
            self._rank = store.ranks[self._worker]
        else:
            cursor = takeover.cursor
            journal = Journal(takeover.inventory.snapshot, cursor.epoch)
            journal.begin(cursor.epoch, cursor.next_seq, takeover.position)
            journal.status = takeover.status
            self._rank = store.take_over(self._worker, takeover.inventory, journal)
            self._counts.num_takeovers += 1
        self.writer = LogWriter(self._log, self._rank, self._renumber)
        self._follower = follower
        if takeover and takeover.position is not None:
            self.writer.resume(self._last, *self._num_bytes)
            if follower.cursor != self.cursor:  # it had more than was written, or less
                follower.forget()
                await asyncio.to_thread(self._rank.journal.snapshot)
        elif takeover:
            store.reset_worker(self._worker)

    def open(self, open_engine: Callable[[RankStore], tuple[Feed, Subscription]]) -> None:
        """Start reading the worker's events. Raises ValueError."""
        feed, subscription = open_engine(self._store)
        self.feed, self.recovery = feed, subscription.recovery
        takeover, stream = self._takeover, subscription.stream
        if takeover is None or takeover.position is None:
            return
        if stream.can_replay:
            is_blind = takeover.status.state is StreamState.BLIND
            stream.adopt(takeover.position, takeover.status.reason if is_blind else None)
            self._store.withdraw_proofs(self._worker)
        else:  # nothing proves that the stream is the same
            self._store.reset_worker(self._worker)

    def attach_index(self, take: Callable[[Update], None], time_slices: TimeSlices) -> None:
        """Feed our index from the journal from now on, in time slices with all other feeds."""
        assert self._rank
        self._apply, self._time_slices = take, time_slices
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
            self._time_slices.add(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._apply_next():
            self._is_scheduled = True
            self._time_slices.add(self._pump)

    def _apply_next(self) -> bool:
        """Apply the next message to our index; False if there is none."""
        if self._is_closed or self._reader is None or (data := self._reader.next()) is None:
            return False
        try:
            self._apply(decode(data))
        except (DecodeError, LogError) as exc:  # our own message
            self._rate_limited.error(
                "worker %s: own log does not apply, restarting from a snapshot: %s", self._worker, exc
            )
            self._follower.forget()
            self._follow()
        return True

    async def run(self) -> None:
        """Lead until the lease is lost, which raises LeaseLost."""
        is_lost = False
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease(), name=f"lease of {self._worker}")
                group.create_task(self._keep_writing(), name=f"log of {self._worker}")
        except* LeaseLost:
            is_lost = True  # raising in here would make a group again
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
                self._redis_failed(exc)
                continue
            self._shared.error_reporter.recovered(self._worker)
            self._is_redis_up.set()
            if last is not None and before is not None and last != before == self.writer.last:
                self.writer.rewrite()  # another gateway wrote there, or a part was lost
                self._news.set()

    def _redis_failed(self, exc: BaseException) -> None:
        self._is_redis_up.clear()
        self._shared.error_reporter.report(self._worker, exc)

    async def _keep_writing(self) -> None:
        while True:
            await self._news.wait()
            await self._is_redis_up.wait()
            self._news.clear()
            lease = self._lease
            try:
                if await self.writer.write(lease) or lease is not self._lease:
                    continue
                self._counts.num_fenced += 1
                await self._regain(lease)
            except LOST as exc:
                self._redis_failed(exc)
            self._news.set()

    async def _regain(self, lease: Lease) -> None:
        """Acquire the lease again after it expired or all was lost; raises LeaseLost if another gateway has
        it."""
        async with self._regaining:
            if self._lease is not lease:
                return
            again = await self._shared.acquire(self._log, if_known=False)
            if not isinstance(again, Lease):
                raise LeaseLost
            self._lease = again
            self._news.set()

    def _renumber(self) -> None:
        """Start another epoch with the current blocks. Our index has all of them, and continues."""
        assert self._rank
        while self._apply_next():
            pass
        journal, store = self._rank.journal, self._store
        knows_all = self._follower.cursor == self.cursor
        self._counts.num_rewrites += 1
        journal.begin(store.next_epoch(), 0, journal.position)
        if knows_all:
            self._follower.cursor = self.cursor
        self._follow()

    def close(self) -> None:
        """Stop reading the worker's events."""
        self._is_closed = True
        if self.feed:
            self.feed.stop()
            self.feed = None

    async def release(self) -> None:
        with suppress(*LOST):
            async with asyncio.timeout(RELEASE_S):
                await self._log.release(self._lease)
