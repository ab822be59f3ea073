"""KV events by way of Redis: one gateway reads a worker's own and tells them, all others follow it.

    asks for the lease ──another has it──► follows: snapshot, then the log ──it may be free──► asks again
           │ ours        ──Redis is away──► after some seconds: reads the worker's own events
           ▼
    holds: goes on where the log ends, with the worker's own events ─► journal ─► our index, and Redis

Who holds reads on while Redis is away; the journal is the queue. Who loses the lease closes the worker's
events and follows again: from where it is if all of that was written, else from a snapshot.
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
from gateway.core.event_stream import Stream, StreamCounts, StreamState
from gateway.core.kv_events import DecodeError
from gateway.core.worker import Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.base import Feed
from gateway.ingest.pauses import Pauses
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import Turns
from gateway.redis.client import LOST
from gateway.replication.applier import Applying, TooMuch
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.leader import Holding, LeaseLost
from gateway.replication.messages import Status, Update
from gateway.replication.rank_store import Shelf
from gateway.replication.redis_log import STATES, Entry, Lease, after_id
from gateway.replication.redis_tail import Followed
from gateway.replication.session import ReplicaCounts, Shared, Times
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate.ingest")

NOWHERE = Cursor()


class OpenEngine(Protocol):
    """Starts reading the worker's own events, into a shelf or our index. ValueError where they cannot be had,
    or not by several."""

    def __call__(self, shelf: Shelf | None) -> tuple[Feed, Subscription]: ...


@dataclass(slots=True, eq=False)
class Alone:
    """The worker's own events, into our index."""

    feed: Feed
    subscription: Subscription


class ReplicaFeed:
    """Of one worker."""

    def __init__(
        self,
        worker: Worker,
        *,
        shared: Shared,
        index: Index,
        assumed: AssumedIndex,
        open_engine: OpenEngine,
        on_state: Callable[[WorkerId, StreamState], None],
        turns: Turns,
        limits: BlockLimits,
    ) -> None:
        assert worker.block_size, "a worker of unknown block size has no feed"
        self._worker = worker.id
        self._root, self._block_size = root_hash(worker.served[0].root), worker.block_size
        self._shared = shared
        self._times: Times = shared.times
        self._log = shared.log_of(self._root, self._block_size, worker.id)
        self._applying = Applying(worker.id, index, assumed, limits)
        self._pauses = Pauses()
        self._open_engine = open_engine
        self._on_state = on_state
        self._turns = turns
        self._follower = Follower(StreamCounts())
        self._rate_limited = RateLimitedLog(log)
        self._followed: Followed | None = None
        self._server = -1  # by which what we know was told
        self._last_status: Status | None = None
        self._told: StreamState | None = None
        self._lost_at: float | None = None
        self._has_followed = False  # before it went on alone
        self._again_at, self._pause_s = float("-inf"), shared.times.pause_s
        self._task: asyncio.Task[None] | None = None
        self.counts = ReplicaCounts()
        self.holding: Holding | None = None
        self._alone: Alone | None = None

    def __repr__(self) -> str:
        doing = self.holding or self._alone or self._followed
        return f"ReplicaFeed({self._worker}, {doing}, {self._follower})"

    @property
    def stream(self) -> Stream | Follower:
        return self._alone.subscription.stream if self._alone else self._follower

    @property
    def _feed(self) -> Feed | None:
        return self.holding.feed if self.holding else self._alone.feed if self._alone else None

    @property
    def healing(self) -> BlindRecovery | None:
        """Where its events are read here."""
        if self._alone:
            return self._alone.subscription.healing
        return self.holding.healing if self.holding else None

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
        return self._followed is not None and self._followed.is_there

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(f"replica of {self._worker}", self._run())

    def stop(self) -> None:
        """What is read of the worker at once; the lease is given back by the task's end."""
        if self._task:
            self._task.cancel()
        self._leave()
        self._end_alone()
        if self.holding:
            self.holding.close()
        if self._shared.feeds.get(self._worker) is self:
            self._shared.trouble.over(self._worker)
            del self._shared.feeds[self._worker]

    @property
    def _knows_others(self) -> bool:
        """Whether another gateway held the lease before: it knows all where Redis comes back empty, and this
        one may have begun with what the engine's short buffer holds."""
        return self._has_followed or self._follower.cursor != NOWHERE

    async def _run(self) -> None:
        is_patient = True
        while True:
            try:
                if_known = is_patient and self._knows_others
                lease = await self._shared.acquire(self._log, if_known=if_known)
                self._shared.trouble.over(self._worker)
                self._lost_at = None
                self._end_alone()
                if isinstance(lease, Lease):
                    await self._hold(lease)
                    is_patient = True
                else:
                    is_patient = lease is not None  # the second time, whoever knew all is not there
                    times = self._times
                    await self._follow(times.grace_s if lease is None else min(lease + 0.005, times.ask_s))
            except LOST as exc:
                self._shared.trouble.tell(self._worker, exc)
                self._lost()
                await asyncio.sleep(self._times.retry_s)

    # follow ------------------------------------------------------------------------------------

    async def _follow(self, seconds: float) -> None:
        """For so long, or until Redis is lost."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0 and not self._shared.is_lost:
            try:
                if self._server != self._shared.tail.server:
                    self._leave()
                followed = self._followed or await self._begin()
                followed.woken.clear()
                if followed.entries:
                    entry = followed.entries.popleft()
                    await self._turns.take(partial(self._take_entry, entry))
                    continue
            except (LogError, DecodeError) as exc:
                await asyncio.sleep(self._again(exc))
                continue
            if followed.is_there and self._follower.state is StreamState.CATCHING_UP and self._last_status:
                self._take(self._last_status)  # and nothing was told since
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await followed.woken.wait()
        if self._shared.is_lost:
            await asyncio.sleep(self._times.pause_s)

    async def _begin(self) -> Followed:
        """Behind what we know; where that is nothing, or another server's, with the snapshot."""
        server = self._shared.tail.server
        if self._follower.cursor == NOWHERE or self._server != server:
            if parts := await self._log.snapshot():
                self._follower.forget()
            for data in parts:
                update = await self._decode(data)
                await self._turns.take(partial(self._take, update))
            self._server = server
        cursor = self._follower.cursor
        self._followed = self._shared.tail.follow(self._log.keys.log, after_id(cursor.epoch, cursor.next_seq))
        return self._followed

    async def _decode(self, data: bytes) -> Update:
        try:
            return decode(data)
        except DecodeError:  # whoever writes the log sees what is wrong at its end, but not in its snapshot
            await self._log.disown()
            raise

    def _take_entry(self, entry: Entry) -> None:
        cursor, update = self._follower.cursor, decode(entry.data)
        if entry.epoch != cursor.epoch:
            raise LogError(f"epoch {entry.epoch} behind epoch {cursor.epoch}")
        if isinstance(update, Status) and entry.place // STATES > cursor.next_seq:
            raise LogError(f"a state behind batch {entry.place // STATES}, where {cursor.next_seq} is due")
        self._take(update)
        self._shared.delays_s.observe(self._shared.tail.age_s(entry))

    def _again(self, exc: Exception) -> float:
        """With a snapshot; in how many seconds."""
        if isinstance(exc, TooMuch):
            return self._cut(str(exc))
        now, times = asyncio.get_running_loop().time(), self._times
        is_new = now - self._again_at > times.patience_s
        self._again_at, self._pause_s = now, times.pause_s if is_new else self._pause_s * 2
        if is_new:  # where nothing was known yet, another one has just begun to write
            is_first = self._follower.cursor == NOWHERE
            tell = self._rate_limited.info if is_first else self._rate_limited.warning
            tell("worker %s: its log in redis is read again from a snapshot: %s", self._worker, exc)
        self.counts.num_resyncs += 1
        self._forget()
        self._tell()
        return min(self._pause_s, times.patience_s / 2)

    def _cut(self, reason: str) -> float:
        """Nothing more is read of it for a while; in how many seconds it is."""
        pause_s = self._pauses.next(asyncio.get_running_loop().time())
        self._forget()
        self._follower.cut(reason)
        text = "worker %s: its log in redis is not read for %g s, its stream is BLIND: %s"
        self._rate_limited.warning(text, self._worker, pause_s, reason)
        self._tell()
        return pause_s

    def _forget(self) -> None:
        self._leave()
        self._follower.lost()
        self._follower.forget()
        self._last_status = None

    def _leave(self) -> None:
        if self._followed:
            self._shared.tail.leave(self._followed)
            self._followed = None

    # Redis is away -----------------------------------------------------------------------------

    def _lost(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._lost_at is None:
            self._lost_at = now
            self._follower.lost()
            self._tell()
        if self._alone is None and now - self._lost_at >= self._times.alone_s:
            self._go_alone()

    def _go_alone(self) -> None:
        """What is known stays known if the engine can prove that its own events go on from there."""
        try:
            feed, subscription = self._open_engine(None)
        except ValueError as exc:
            log.debug("worker %s: its own events are not read meanwhile: %s", self._worker, exc)
            return
        self._leave()
        self._rate_limited.info(
            "worker %s: redis is away, its own events are read at %s", self._worker, feed.endpoint
        )
        follower, stream = self._follower, subscription.stream
        self._alone = Alone(feed, subscription)
        stream.counts = follower.counts
        if follower.handover and stream.can_replay:
            stream.adopt(follower.handover, follower.blind_reason)
            self._applying.take_back_proofs()
        else:
            self._applying.reset()
        self._has_followed = self._knows_others
        follower.forget()

    def _end_alone(self) -> None:
        if self._alone:
            self._alone.feed.stop()
            self._alone = self._told = None
            self._forget()

    # hold --------------------------------------------------------------------------------------

    async def _hold(self, lease: Lease) -> None:
        """As long as the lease is ours."""
        self._leave()
        self._has_followed = False
        self._server = self._shared.tail.server
        holding = Holding(
            self._worker, self._root, self._block_size, self._log, self._shared, lease, self.counts
        )
        try:
            await self._inherit(holding)
            try:
                self.holding = holding
                holding.open(self._open_engine)
            except ValueError as exc:
                self._rate_limited.warning(
                    "worker %s: its events cannot be read from here: %s", self._worker, exc
                )
                return await self._follow(self._times.refused_s)
            holding.tell(lambda update: self._take(update), self._turns)
            await holding.run()
        except LeaseLost:
            self._rate_limited.info("worker %s: another gateway reads its events now", self._worker)
        finally:
            holding.close()
            if self.holding is holding:
                self.holding = None
            if not holding.has_told_all or holding.cursor != self._follower.cursor:
                self._forget()
            await holding.release()

    async def _inherit(self, holding: Holding) -> None:
        """What was told behind what we know is ours to apply, before anything else comes."""
        entries = await holding.inherit()
        try:
            for entry in entries:
                if entry.epoch == self._follower.cursor.epoch:
                    await self._turns.take(partial(self._take_entry, entry))
        except (LogError, DecodeError):
            self._forget()
        await holding.begin(self._follower)

    # both --------------------------------------------------------------------------------------

    def _take(self, update: Update) -> None:
        if isinstance(update, Status):
            self._last_status = update
        self._applying.apply(self._follower.take(update))
        self._tell()

    def _tell(self) -> None:
        """While the worker's own events are read into our index, their subscription tells."""
        if self._alone is None and self._told is not self._follower.state:
            self._told = self._follower.state
            self._on_state(self._worker, self._told)
