"""Log and snapshot of one rank, in bytes, and the readers' cursors. Pure: no sockets, no clock.

    changes ─► batch ─► log ─┬─► reader at batch 17
                             ├─► reader at batch 16
               snapshot ─────┴─► reader that is new, or slower than the log is long

A reader is a position in the log, not a queue: one that does not read costs nothing, and continues with a
snapshot when the log has moved on. The snapshot is made on demand, and reused as long as the log since is no
longer than the snapshot.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.core.event_stream import Position, StreamState
from gateway.core.kv_events import KvEvent, num_blocks
from gateway.index.inventory import PART_BLOCKS, Inventory
from gateway.replication.codec import encode
from gateway.replication.messages import AgentStatus, BlockSample, LogBatch, SnapshotPart

MAX_LOG_BYTES = 16 << 20
"""Size of the log: a million blocks stored, minutes of a busy engine, for gateways that lose their
connection."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    parts: Sequence[bytes]
    next_seq: int
    num_bytes: int


class Journal:
    """Log of one rank. `snapshot` yields the events that rebuild its blocks in an empty worker."""

    def __init__(
        self, snapshot: Callable[[], Iterable[KvEvent]], epoch: int, *, max_bytes: int = MAX_LOG_BYTES
    ) -> None:
        self._make = snapshot
        self._max_bytes = max_bytes
        self.status = AgentStatus(StreamState.CATCHING_UP)
        self.num_snapshots = 0
        self.begin(epoch)

    def __repr__(self) -> str:
        kept = f"{len(self._log)} batches, {self._num_bytes} bytes"
        return f"Journal(epoch={self.epoch}, next_seq={self.next_seq}, {kept})"

    def begin(self, epoch: int, next_seq: int = 0, position: Position | None = Position()) -> None:  # noqa: B008
        """Empty the log: start from 0 in a new epoch, later than any before, or where another journal, now
        closed, ended."""
        self.epoch = epoch
        self.next_seq = self.first_seq = next_seq
        self.position = position
        self._log: deque[bytes] = deque()
        self._is_whole: deque[bool] = deque()
        self._num_bytes = 0
        self._num_logged = 0  # bytes in this epoch
        self._snapshot: Snapshot | None = None
        self._logged_at_snapshot = 0

    def append(self, changes: Sequence[KvEvent], position: Position | None) -> None:
        data = encode(LogBatch(self.epoch, self.next_seq, changes, position))
        self.position = position
        self.next_seq += 1
        self._log.append(data)
        self._is_whole.append(position is not None)
        self._num_bytes += len(data)
        self._num_logged += len(data)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._log.popleft())
            self._is_whole.popleft()
            self.first_seq += 1

    def read(self, epoch: int = 0, next_seq: int = 0) -> "JournalReader":
        return JournalReader(self, epoch, next_seq)

    def has(self, epoch: int, next_seq: int) -> bool:
        """Return True if everything from there on is in the log."""
        return epoch == self.epoch and self.first_seq <= next_seq <= self.next_seq

    def at(self, seq: int) -> bytes:
        return self._log[seq - self.first_seq]

    def is_whole(self, seq: int) -> bool:
        """Return True if an engine batch ends there."""
        return self._is_whole[seq - self.first_seq]

    def snapshot(self) -> Snapshot:
        kept = self._snapshot
        since = self._num_logged - self._logged_at_snapshot
        if kept is None or not self.has(self.epoch, kept.next_seq) or since > kept.num_bytes:
            kept = self._snapshot = self._make_snapshot()
            self._logged_at_snapshot = self._num_logged
        return kept

    def _make_snapshot(self) -> Snapshot:
        self.num_snapshots += 1
        parts: list[bytes] = []
        portions = list(_portions(self._make()))
        for i, changes in enumerate(portions):
            is_last = i == len(portions) - 1
            position = self.position if is_last else None
            parts.append(encode(SnapshotPart(self.epoch, self.next_seq, i, is_last, changes, position)))
        return Snapshot(parts, self.next_seq, sum(map(len, parts)))


class JournalReader:
    """Reader of a journal: `next` returns the next message, or None until the journal changes."""

    def __init__(self, journal: Journal, epoch: int, next_seq: int) -> None:
        self._journal = journal
        self._epoch = epoch
        self._next_seq = next_seq
        self._parts: Iterator[bytes] = iter(())
        self._reported: AgentStatus | None = None
        self.num_snapshots = 0

    def __repr__(self) -> str:
        return (
            f"JournalReader(epoch={self._epoch}, next_seq={self._next_seq}, snapshots={self.num_snapshots})"
        )

    def next(self) -> bytes | None:
        journal = self._journal
        if self._epoch == journal.epoch and (part := next(self._parts, None)) is not None:
            return part
        if not journal.has(self._epoch, self._next_seq):
            return self._begin_snapshot()
        if self._next_seq < journal.next_seq:
            self._next_seq += 1
            return journal.at(self._next_seq - 1)
        if self._reported != journal.status:
            self._reported = journal.status
            return encode(journal.status)
        return None

    def sample(self, inventory: Inventory, rng: random.Random) -> bytes:
        """Return a sample of the current blocks, for a reader that is at the end of the log."""
        journal = self._journal
        path = inventory.sample(rng)
        return encode(BlockSample(journal.epoch, journal.next_seq, inventory.num_blocks, path))

    def _begin_snapshot(self) -> bytes:
        snapshot = self._journal.snapshot()
        self._epoch, self._next_seq = self._journal.epoch, snapshot.next_seq
        self._parts, self._reported = iter(snapshot.parts), None
        self.num_snapshots += 1
        return next(self._parts)


def _portions(events: Iterable[KvEvent]) -> Iterator[list[KvEvent]]:
    """Group events into at least one portion, none with more than two events' worth of blocks."""
    portion: list[KvEvent] = []
    room = PART_BLOCKS
    for event in events:
        portion.append(event)
        room -= num_blocks(event)
        if room <= 0:
            yield portion
            portion, room = [], PART_BLOCKS
    yield portion
