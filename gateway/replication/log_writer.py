"""Writer of a journal into a worker's log in Redis.

    news ─► append ─OK──► next
              │ └─TORN──► the log in Redis is not ours: another epoch, its snapshot, and on from there
              └─FENCED──► the lease is another gateway's: stop
    the log has grown by more than the snapshot is long ─► another one, and the log is cut behind the last

The journal is the queue: while Redis is away it keeps unwritten batches, up to its bound; what it has
dropped by then is replaced by a snapshot in another epoch.
"""

import asyncio
from collections.abc import Callable

from gateway.replication.codec import encode
from gateway.replication.journal import Journal, Snapshot
from gateway.replication.messages import AgentStatus
from gateway.replication.rank_store import RankState
from gateway.replication.redis_log import (
    START,
    STATES,
    Lease,
    WorkerLog,
    WriteResult,
    after_id,
    batch_id,
    state_id,
)

APPEND_BYTES = 1 << 20
"""Bytes per script call, unless one engine batch is longer: it blocks the server for a millisecond."""
MIN_LOG_BYTES = 1 << 20
"""Smallest log that is replaced by a snapshot."""


class LogWriter:
    """Writes one rank's journal to Redis. `renumber` starts another epoch of the journal with its current
    blocks."""

    def __init__(self, log: WorkerLog, rank: RankState, renumber: Callable[[], None]) -> None:
        self._log = log
        self._rank = rank
        self._renumber = renumber
        self.epoch = self.next_seq = 0
        self.num_snapshots = 0
        self._last = START
        self._reported: AgentStatus | None = None
        self._writing_status: AgentStatus | None = None
        self._begun = 0  # the last epoch that was written
        self._since = self._snapshot_bytes = self._snapshot_seq = 0
        self._sending: list[tuple[str, bytes]] = []
        self._is_writing = False

    def __repr__(self) -> str:
        return f"LogWriter(epoch={self.epoch}, next_seq={self.next_seq}, queued={self.num_queued})"

    @property
    def _journal(self) -> Journal:
        return self._rank.journal

    @property
    def num_queued(self) -> int:
        journal = self._journal
        return journal.next_seq - (self.next_seq if self.epoch == journal.epoch else 0)

    @property
    def has_written_all(self) -> bool:
        return not self._sending and self.epoch == self._journal.epoch and not self.num_queued

    @property
    def last(self) -> str | None:
        """Id of the last entry of the log; None while that changes, or is unknown."""
        return None if self._is_writing or self._sending else self._last

    def resume(self, last: str, num_bytes: int, snapshot_bytes: int) -> None:
        """Continue behind what an earlier leader wrote of this very journal."""
        self.epoch, self.next_seq = self._journal.epoch, self._journal.next_seq
        self._last, self._since, self._snapshot_bytes = last, num_bytes, snapshot_bytes
        self._reported, self._snapshot_seq = self._journal.status, self.next_seq
        self._begun = self.epoch

    async def write(self, lease: Lease) -> bool:
        """Write everything that is complete; False if the lease is another gateway's. Raises one of
        `client.LOST`."""
        self._is_writing = True
        try:
            while True:
                written = await self._write_some(lease)
                if written is None:
                    return True
                if written is WriteResult.FENCED:
                    return False
                if written is WriteResult.TORN:
                    self.rewrite()
        finally:
            self._is_writing = False

    def rewrite(self) -> None:
        """Write everything again the next time, since the log in Redis is not what we wrote."""
        self._sending, self._writing_status = [], None
        self._last = START
        self.epoch = 0

    async def _write_some(self, lease: Lease) -> WriteResult | None:
        """Write the next part; None if everything is written."""
        journal = self._journal
        if not self._sending and not journal.has(self.epoch, self.next_seq):
            return await self._begin(lease)
        if self._sending or self._prepare():
            return await self._append(lease)
        is_long = self._since > max(self._snapshot_bytes, MIN_LOG_BYTES)
        if is_long and journal.position is not None and self.next_seq == journal.next_seq:
            return await self._snapshot(lease, after_id(self.epoch, self._snapshot_seq))
        return None

    async def _begin(self, lease: Lease) -> WriteResult | None:
        """Start the log with a snapshot, dropping its old content."""
        if self._journal.position is None:
            return None  # inside an engine batch; the rest is on its way
        if not self._journal.epoch > self._begun:
            self._renumber()
        return await self._snapshot(lease, "")

    async def _snapshot(self, lease: Lease, keep_from: str) -> WriteResult:
        snapshot = await self._make_snapshot()
        journal, status = self._journal, self._journal.status
        epoch = self._begun = journal.epoch
        last = self._last if keep_from else START
        next_seq = max(snapshot.next_seq, self.next_seq) if keep_from else snapshot.next_seq
        state = state_id(last, epoch, next_seq), encode(status)
        written = await self._log.replace(lease, snapshot.parts, keep_from, state)
        if written is WriteResult.OK and (keep_from or epoch == journal.epoch):
            self.epoch, self.next_seq, self._last = epoch, next_seq, state[0]
            self._reported, self._since, self._snapshot_bytes = status, 0, snapshot.num_bytes
            self._snapshot_seq = snapshot.next_seq
            self.num_snapshots += 1
        return written

    async def _make_snapshot(self) -> Snapshot:
        """Make a snapshot in a thread, since it takes a second for a million blocks; engine events wait
        meanwhile."""
        self._rank.is_frozen = True
        try:
            return await asyncio.to_thread(self._journal.snapshot)
        finally:
            self._rank.is_frozen = False

    def _prepare(self) -> bool:
        """Queue the next batches, up to the end of an engine batch, and the state behind them."""
        journal, some, num_bytes = self._journal, list[tuple[str, bytes]](), 0
        whole = 0
        for seq in range(self.next_seq, journal.next_seq):
            some.append((batch_id(self.epoch, seq), journal.at(seq)))
            num_bytes += len(some[-1][1])
            if journal.is_whole(seq):
                whole = len(some)
                if num_bytes > APPEND_BYTES:
                    break
        self._sending = some[:whole]
        if self.next_seq + whole == journal.next_seq and self._reported != journal.status:
            last = self._sending[-1][0] if self._sending else self._last
            self._sending.append((state_id(last, self.epoch, journal.next_seq), encode(journal.status)))
            self._writing_status = journal.status
        return bool(self._sending)

    async def _append(self, lease: Lease) -> WriteResult:
        """Append the queued entries. Unanswered ones are sent again unchanged: Redis recognizes their ids."""
        sending = self._sending
        written = await self._log.append(lease, self._last, sending)
        if written is WriteResult.OK:
            self._last, self._sending = sending[-1][0], []
            self.next_seq = int(self._last.partition("-")[2]) // STATES
            self._since += sum(len(data) for _, data in sending)
            if self._writing_status is not None:
                self._reported, self._writing_status = self._writing_status, None
        return written
