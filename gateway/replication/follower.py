"""Follower of an agent's or leader's log: the index changes of each update, and whether the log is complete.

    | input     | expected                             | otherwise                                      |
    |-----------|--------------------------------------|------------------------------------------------|
    | snapshot  | part 0: forget, apply                | a later part that is not the next: LogError    |
    |           | the next part: apply                 |                                                |
    |           | the last: from here on, batches      |                                                |
    | batch     | the next of this epoch: apply        | number below: repeat, dropped                  |
    |           |                                      | another epoch, a gap, in a snapshot: LogError  |
    | status    | everything up to here has arrived: adopt its state                                    |
    | sample    | nothing to apply; the caller compares | not behind what is applied: LogError           |
    | lost      | CATCHING_UP until the log continues, from `cursor` on                                 |

After a LogError the cursor is where the gap is, or nowhere if a snapshot was cut: subscribing from there
brings the missing batches, or another snapshot. No sockets, no clock.
"""

from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.blocks import root_hash
from gateway.core.event_stream import Position, Reset, StreamCounts, StreamState
from gateway.core.kv_events import KvEvent
from gateway.core.worker import Worker
from gateway.http.address import Address
from gateway.replication.messages import (
    VERSION,
    AgentHello,
    AgentStatus,
    BlockSample,
    LogBatch,
    SnapshotPart,
    Update,
)


class LogError(ValueError):
    """Update that does not follow from those before; the message says how."""


class Drift(LogError):
    """Index contents differ from the log's source."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in a log: the first missing batch. Epoch 0: nothing is known."""

    epoch: int = 0
    next_seq: int = 0


Change: TypeAlias = Reset | KvEvent


class Follower:
    def __init__(self, counts: StreamCounts) -> None:
        """Create a follower; `counts` continue those of an earlier reader of the worker's events."""
        self.counts = counts
        self.cursor = Cursor()
        self._position: Position | None = None
        self._is_complete = False
        self.blind_reason: str | None = None
        self.status = AgentStatus(StreamState.CATCHING_UP)
        self._next_part = 0  # of a snapshot under way

    def __repr__(self) -> str:
        return f"Follower({self.status.state.value}, {self.cursor})"

    @property
    def state(self) -> StreamState:
        return self.status.state

    @property
    def handover(self) -> Position | None:
        """Position of the engine's own events behind what is applied.

        None where a snapshot or a batch was cut, or nothing proves later that the stream is the same.
        """
        position = self._position if self._is_complete else None
        return position if position and (position.digest or not position.next_seq) else None

    def advance(self, update: Update) -> list[Change]:
        """Return the index changes of an update, in order. Raises LogError, with nothing done."""
        match update:
            case SnapshotPart():
                return self._snapshot(update)
            case LogBatch():
                return self._batch(update)
            case AgentStatus():
                self.status = update
                if update.state is not StreamState.CATCHING_UP:
                    self._is_complete = True
                    has_reason = update.state in (StreamState.BLIND, StreamState.UNPROVEN)
                    self.blind_reason = update.reason if has_reason else None
            case AgentHello():
                self._wait()
            case BlockSample():
                if self._next_part or Cursor(update.epoch, update.next_seq) != self.cursor:
                    raise LogError(f"a sample behind batch {update.next_seq} of epoch {update.epoch}")
        return []

    def lost(self) -> None:
        """Wait for the log to continue after its source was lost."""
        self._wait()
        if self._next_part:
            self.forget()

    def forget(self) -> None:
        """Start over with a snapshot, since the index differs from the log."""
        self.cursor, self._next_part, self._is_complete = Cursor(), 0, False

    def cut(self, reason: str) -> None:
        """Drop everything, since more blocks were reported than may be kept of one worker."""
        self.counts.num_cuts += 1
        self.forget()
        self.status, self.blind_reason = AgentStatus(StreamState.BLIND, reason), reason

    @property
    def reason(self) -> str | None:
        """Why the stream is BLIND."""
        return self.blind_reason

    def _wait(self) -> None:
        self.status = AgentStatus(StreamState.CATCHING_UP)

    def _snapshot(self, part: SnapshotPart) -> list[Change]:
        if part.part and (part.part != self._next_part or part.epoch != self.cursor.epoch):
            expected, self._next_part = self._next_part, 1
            raise LogError(f"part {part.part} of a snapshot where part {expected} was due")
        self._wait()
        self.cursor = Cursor(part.epoch, part.next_seq)
        self._position, self._is_complete = part.position, False
        self._next_part = 0 if part.is_last else part.part + 1
        if part.part:
            return list(part.changes)
        self.counts.num_resets += 1
        return [Reset("a snapshot follows"), *part.changes]

    def _batch(self, batch: LogBatch) -> list[Change]:
        epoch, next_seq = self.cursor.epoch, self.cursor.next_seq
        if self._next_part or batch.epoch != epoch:
            raise LogError(f"batch {batch.seq} of epoch {batch.epoch} without its snapshot")
        if batch.seq < next_seq:
            self.counts.num_repeats += 1
            return []
        if batch.seq > next_seq:
            self.counts.num_gaps += 1
            raise LogError(f"batch {batch.seq} where batch {next_seq} was due")
        self.cursor = Cursor(epoch, next_seq + 1)
        self._position = batch.position
        self.counts.num_batches += 1
        return list(batch.changes)


START_TOLERANCE_S = 0.005
"""Tolerance between two readings of one engine's start time."""


def refusal(hello: AgentHello, worker: Worker, start_time_s: float | None, *, is_named: bool) -> str | None:
    """Explain why an agent's introduction does not fit this worker; None if it fits. `is_named`: the operator
    assigned the agent to the worker, else it was found at the agents' port."""
    if hello.version != VERSION:
        return f"protocol version {hello.version} instead of {VERSION}"
    served = worker.served[0]
    if hello.root != root_hash(served.root):
        return f"the engine at {hello.engine_url} has another model than {served.root}"
    if (hello.dp_rank, hello.block_size) != (worker.dp_rank, worker.block_size):
        reported = f"rank {hello.dp_rank} with blocks of {hello.block_size} tokens"
        return f"it reports {reported} instead of rank {worker.dp_rank} with blocks of {worker.block_size}"
    if start_time_s and hello.start_time_s and abs(start_time_s - hello.start_time_s) > START_TOLERANCE_S:
        return f"it reports another engine process, at {hello.engine_url}"
    try:
        port = Address.of(hello.engine_url).port
    except ValueError as exc:
        return f"the URL of its engine is invalid: {str(exc)[:200]}"
    if not is_named and port != Address.of(worker.url).port:
        return f"it reports {hello.engine_url}, on another port; assign this worker's agent with --agent"
    if hello.status.state is StreamState.CATCHING_UP:
        return "it is catching up"
    return None
