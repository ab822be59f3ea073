"""Feed of a worker's KV events through Redis: one gateway reads and logs them, all others follow the log.

    asks for the lease ──another has it──► follows: snapshot, then the log ──it may be free──► asks again
           │ ours        ──Redis is away──► after some seconds: reads the worker's own events
           ▼
    leads: continues where the log ends, with the worker's own events ─► journal ─► our index, and Redis

A leader reads on while Redis is away; the journal is the queue. A gateway that loses the lease closes the
worker's events and follows again: from its position if all of that was written, else from a snapshot.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.core.block_limits import BlockLimits
from gateway.core.blocks import root_hash
from gateway.core.causes import cause_of
from gateway.core.event_stream import Stream, StreamCounts, StreamState
from gateway.core.kv_events import DecodeError
from gateway.core.worker import Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.base import Feed
from gateway.ingest.pauses import Backoff
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.redis.client import LOST
from gateway.replication.applier import Applier, LimitExceeded
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.leader import Leader, LeaseLost, ReplicaCounts
from gateway.replication.messages import AgentStatus, Update
from gateway.replication.rank_store import RankStore
from gateway.replication.redis_link import RedisLink, ReplicaTimes
from gateway.replication.redis_log import STATES, Lease, LogEntry, after_id
from gateway.replication.redis_tail import FollowedLog
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate.ingest")

NOWHERE = Cursor()


class OpenEngine(Protocol):
    """Starts reading the worker's own events, into a rank store or our index.

    Raises ValueError where they are not available, or not to several readers.
    """

    def __call__(self, store: RankStore | None) -> tuple[Feed, Subscription]: ...


@dataclass(slots=True, eq=False)
class DirectFeed:
    """Direct feed of the worker's own events into our index."""

    feed: Feed
    subscription: Subscription


class ReplicaFeed:
    """Feed of one worker through Redis, as its leader or a follower."""

    def __init__(
        self,
        worker: Worker,
        *,
        shared: RedisLink,
        index: Index,
        assumed: AssumedIndex,
        open_engine: OpenEngine,
        on_state: Callable[[WorkerId, StreamState], None],
        time_slices: TimeSlices,
        limits: BlockLimits,
        on_stop: Callable[["ReplicaFeed"], None],
    ) -> None:
        assert worker.block_size, "a worker of unknown block size has no feed"
        self._worker = worker.id
        self._root, self._block_size = root_hash(worker.served[0].root), worker.block_size
        self._shared = shared
        self._times: ReplicaTimes = shared.times
        self._log = shared.log_of(self._root, self._block_size, worker.id)
        self._applier = Applier(worker.id, index, assumed, limits)
        self._pauses = Backoff()
        self._open_engine = open_engine
        self._on_state = on_state
        self._on_stop = on_stop
        self._time_slices = time_slices
        self._follower = Follower(StreamCounts())
        self._rate_limited = RateLimitedLog(log)
        self._followed: FollowedLog | None = None
        self._server = -1  # the one that our state came from
        self._last_status: AgentStatus | None = None
        self._reported: StreamState | None = None
        self._lost_at: float | None = None
        self._has_followed = False  # before reading directly
        self._again_at, self._pause_s = float("-inf"), shared.times.pause_s
        self._task: asyncio.Task[None] | None = None
        self.counts: ReplicaCounts = ReplicaCounts()
        self.leader: Leader | None = None
        self._direct: DirectFeed | None = None

    def __repr__(self) -> str:
        doing = self.leader or self._direct or self._followed
        return f"ReplicaFeed({self._worker}, {doing}, {self._follower})"

    @property
    def stream(self) -> Stream | Follower:
        return self._direct.subscription.stream if self._direct else self._follower

    @property
    def _feed(self) -> Feed | None:
        return self.leader.feed if self.leader else self._direct.feed if self._direct else None

    @property
    def recovery(self) -> BlindRecovery | None:
        """Blind recovery of the worker, if its events are read here."""
        if self._direct:
            return self._direct.subscription.recovery
        return self.leader.recovery if self.leader else None

    @property
    def endpoint(self) -> str:
        return self._feed.endpoint if self._feed else self._shared.where

    @property
    def replay_endpoint(self) -> str | None:
        return self._feed.replay_endpoint if self._feed else None

    @property
    def is_connected(self) -> bool:
        if self._feed:
            return self._feed.is_connected
        return self._followed is not None and self._followed.is_live

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(f"replica of {self._worker}", self._run())

    def stop(self) -> None:
        """Stop reading at once; the task releases the lease at its end."""
        if self._task:
            self._task.cancel()
        self._unfollow()
        self._stop_direct()
        if self.leader:
            self.leader.close()
        self._on_stop(self)

    @property
    def _knows_others(self) -> bool:
        """True if another gateway led the worker before: it has the complete state if Redis comes back empty,
        while this one may have begun with the engine's short buffer."""
        return self._has_followed or self._follower.cursor != NOWHERE

    async def _run(self) -> None:
        loop, times = asyncio.get_running_loop(), self._times
        patient_until: float | None = (
            None  # the lease is free, and its last leader may come back with all data
        )
        while True:
            try:
                is_patient = patient_until is None or loop.time() < patient_until
                if_known = is_patient and self._knows_others
                lease = await self._shared.acquire(self._log, if_known=if_known)
                self._shared.error_reporter.recovered(self._worker)
                self._lost_at = None
                self._stop_direct()
                if isinstance(lease, Lease):
                    patient_until = None
                    await self._lead(lease)
                elif lease is not None:
                    patient_until = None
                    await self._follow(min(lease + 0.005, times.ask_s))
                else:
                    patient_until = patient_until or loop.time() + times.grace_s
                    await self._follow(patient_until - loop.time())
            except LOST as exc:
                patient_until = None  # the leader cannot come back either
                self._shared.error_reporter.report(self._worker, exc)
                self._lost()
                await asyncio.sleep(self._times.retry_s)

    # follow ------------------------------------------------------------------------------------

    async def _follow(self, seconds: float) -> None:
        """Follow the log for some seconds, or until Redis is lost."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0 and not self._shared.is_lost:
            try:
                if self._server != self._shared.tail.server:
                    self._unfollow()
                followed = self._followed or await self._begin()
                followed.woken.clear()
                if followed.entries:
                    entry = followed.entries.popleft()
                    await self._time_slices.run(partial(self._apply_entry, entry))
                    continue
            except (LogError, DecodeError) as exc:
                await asyncio.sleep(self._prepare_resync(exc))
                continue
            if followed.is_live and self._follower.state is StreamState.CATCHING_UP and self._last_status:
                self._apply(self._last_status)  # and nothing was logged since
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await followed.woken.wait()
        if self._shared.is_lost:
            await asyncio.sleep(self._times.pause_s)

    async def _begin(self) -> FollowedLog:
        """Start following behind our position; without one, or on another server, from the snapshot."""
        server = self._shared.tail.server
        if self._follower.cursor == NOWHERE or self._server != server:
            if parts := await self._log.snapshot():
                self._follower.forget()
            for data in parts:
                update = await self._decode(data)
                await self._time_slices.run(partial(self._apply, update))
            self._server = server
        cursor = self._follower.cursor
        self._followed = self._shared.tail.follow(self._log.keys.log, after_id(cursor.epoch, cursor.next_seq))
        return self._followed

    async def _decode(self, data: bytes) -> Update:
        try:
            return decode(data)
        except DecodeError:  # the leader checks the end of its log, but not its snapshot
            await self._log.drop_snapshot()
            raise

    def _apply_entry(self, entry: LogEntry) -> None:
        cursor, update = self._follower.cursor, decode(entry.data)
        if entry.epoch != cursor.epoch:
            raise LogError(f"epoch {entry.epoch} behind epoch {cursor.epoch}")
        if isinstance(update, AgentStatus) and entry.place // STATES > cursor.next_seq:
            raise LogError(f"a state behind batch {entry.place // STATES}, where {cursor.next_seq} is due")
        self._apply(update)
        self._shared.delays_s.observe(self._shared.tail.age_s(entry))

    def _prepare_resync(self, exc: Exception) -> float:
        """Prepare a resync from a snapshot; returns the seconds to wait."""
        if isinstance(exc, LimitExceeded):
            return self._cut(str(exc))
        now, times = asyncio.get_running_loop().time(), self._times
        is_new = now - self._again_at > times.patience_s
        self._again_at, self._pause_s = now, times.pause_s if is_new else self._pause_s * 2
        if is_new:  # without a position, another leader has just begun to write
            is_first = self._follower.cursor == NOWHERE
            write = self._rate_limited.info if is_first else self._rate_limited.warning
            write("worker %s: resyncing from redis: %s", self._worker, cause_of(exc))
        self.counts.num_resyncs += 1
        self._forget()
        self._report()
        return min(self._pause_s, times.patience_s / 2)

    def _cut(self, reason: str) -> float:
        """Pause the feed, since more blocks were reported than may be kept; returns the pause in seconds."""
        pause_s = self._pauses.next(asyncio.get_running_loop().time())
        self._forget()
        self._follower.cut(reason)
        text = "worker %s: log in redis paused for %g s, stream is BLIND: %s"
        self._rate_limited.warning(text, self._worker, pause_s, reason)
        self._report()
        return pause_s

    def _forget(self) -> None:
        self._unfollow()
        self._follower.lost()
        self._follower.forget()
        self._last_status = None

    def _unfollow(self) -> None:
        if self._followed:
            self._shared.tail.unfollow(self._followed)
            self._followed = None

    # Redis is away -----------------------------------------------------------------------------

    def _lost(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._lost_at is None:
            self._lost_at = now
            self._follower.lost()
            self._report()
        if self._direct is None and now - self._lost_at >= self._times.direct_after_s:
            self._read_directly()

    def _read_directly(self) -> None:
        """Read the worker's own events; the index is kept if the engine can prove that they continue from
        there."""
        try:
            feed, subscription = self._open_engine(None)
        except ValueError as exc:
            log.debug("worker %s: own events not readable while redis is away: %s", self._worker, exc)
            return
        self._unfollow()
        self._rate_limited.info(
            "worker %s: redis is away, reading its own events at %s", self._worker, feed.endpoint
        )
        follower, stream = self._follower, subscription.stream
        self._direct = DirectFeed(feed, subscription)
        stream.counts = follower.counts
        if follower.handover and stream.can_replay:
            stream.adopt(follower.handover, follower.blind_reason)
            self._applier.withdraw_proofs()
        else:
            self._applier.reset()
        self._has_followed = self._knows_others
        follower.forget()

    def _stop_direct(self) -> None:
        if self._direct:
            self._direct.feed.stop()
            self._direct = self._reported = None
            self._forget()

    # hold --------------------------------------------------------------------------------------

    async def _lead(self, lease: Lease) -> None:
        """Lead as long as the lease is ours."""
        self._unfollow()
        self._has_followed = False
        self._server = self._shared.tail.server
        leader = Leader(
            self._worker, self._root, self._block_size, self._log, self._shared, lease, self.counts
        )
        try:
            await self._take_over(leader)
            try:
                self.leader = leader
                leader.open(self._open_engine)
            except ValueError as exc:
                self._rate_limited.warning("worker %s: events not readable from here: %s", self._worker, exc)
                return await self._follow(self._times.refused_s)
            leader.attach_index(lambda update: self._apply(update), self._time_slices)
            await leader.run()
        except LeaseLost:
            self._rate_limited.info("worker %s: another gateway is its leader now", self._worker)
        finally:
            leader.close()
            if self.leader is leader:
                self.leader = None
            if not leader.has_written_all or leader.cursor != self._follower.cursor:
                self._forget()
            await leader.release()

    async def _take_over(self, leader: Leader) -> None:
        """Apply the log's entries behind our position, before any new event."""
        entries = await leader.read_log()
        try:
            for entry in entries:
                if entry.epoch == self._follower.cursor.epoch:
                    await self._time_slices.run(partial(self._apply_entry, entry))
        except (LogError, DecodeError):
            self._forget()
        await leader.begin(self._follower)

    # both --------------------------------------------------------------------------------------

    def _apply(self, update: Update) -> None:
        if isinstance(update, AgentStatus):
            self._last_status = update
        self._applier.apply(self._follower.advance(update))
        self._report()

    def _report(self) -> None:
        """Report a changed state, unless the direct subscription does."""
        if self._direct is None and self._reported is not self._follower.state:
            self._reported = self._follower.state
            self._on_state(self._worker, self._reported)
