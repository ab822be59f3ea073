"""The state machine of a worker's event stream: is the known part of its cache complete?

    EXACT         every batch since a known start was applied
    CATCHING_UP   a fresh start, a gap or a reconnection is being replayed; newer batches are held
    BLIND         something was missed that no replay brings back: what we credit is still there,
                  but the worker may hold more than we know
    UNPROVEN      nothing was missed, but the events may be another worker's: no prompt that would show
                  it was sent yet

    | input            | expected                 | otherwise                                          |
    |------------------|--------------------------|----------------------------------------------------|
    | live(batch)      | seq == next: apply       | seq > next: gap, hold it, ask for a replay         |
    |                  |                          | seq < next, not newer than the last: drop (repeat) |
    |                  |                          | seq < next, newer: engine restarted, start afresh  |
    | replayed(batch)  | last one again, next ... | other digest under a known number: restarted       |
    |                  |                          | first number too high: gap cannot be filled        |
    |                  |                          | a later one too high: dropped on the way, ask again|
    | replay_stalled   |                          | got somewhere: ask again from there                |
    | replay_ended     | held batches follow on   | last one never came: restarted; hole: ask again    |
    | replay_failed    |                          | forget what may be stale, go on BLIND              |
    | cut              | forget, go on BLIND: its events were more than may be taken of one worker     |
    | disconnected     |                          | hold until a replay proves it is the same engine;  |
    |                  |                          | without replays: forget, go on BLIND               |

A replay is always asked from the last applied batch on, not from the first missing one: if it comes
back with another digest, this is another engine process with the same numbers. The machine has no
sockets and no clock; each input returns the commands that the caller must carry out in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from gateway.core.kv_events import BlocksCleared, EventBatch, num_blocks

RESTARTED = "engine restarted"
NOT_PROVEN = "owner not proven: "
AWAITING_PROOF = "owner not proven yet: "
NO_REPLAY = "no replay endpoint: what was stored before is unknown"


class StreamState(Enum):
    EXACT = "exact"
    CATCHING_UP = "catching_up"
    BLIND = "blind"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream was read: the number of the next batch, digest and time of the last one."""

    next_seq: int = 0
    digest: int = 0
    ts: float = 0.0


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the batch to the index."""

    batch: EventBatch


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget all blocks of this worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask for all batches from `start_seq` on; replaces a replay still under way."""

    start_seq: int


Command: TypeAlias = Apply | Reset | AskReplay


@dataclass(slots=True)
class StreamCounts:
    """Counts of one stream. `num_cuts` counts how often it exceeded a bound, `num_samples` the comparisons
    with an agent's blocks, `num_drifts` those that differed."""

    num_batches: int = 0
    num_gaps: int = 0
    num_repeats: int = 0
    num_resets: int = 0
    num_undecodable: int = 0
    num_cuts: int = 0
    num_samples: int = 0
    num_drifts: int = 0


MAX_HELD_BLOCKS = 1 << 18
"""About 30 MB. An engine that computes 20,000 tokens/s in blocks of one token stores as many in 13 s."""


class Stream:
    """State of one worker's KV events: applied, repeated, replayed or lost. `max_held` bounds the batches
    kept back during a replay, `max_held_blocks` the blocks in these."""

    def __init__(
        self, *, can_replay: bool, max_held: int = 20_000, max_held_blocks: int = MAX_HELD_BLOCKS
    ) -> None:
        self.can_replay = can_replay
        self.max_held = max_held
        self.max_held_blocks = max_held_blocks
        self.epoch = 0
        self.next_seq = 0
        self.counts = StreamCounts()
        self.blind_reason = None if can_replay else NO_REPLAY
        self.owner_doubt: str | None = None  # the reason why the events may be another worker's
        self.is_awaiting_proof = False  # the doubt is no fault: there was no prompt yet that would end it
        self._replay_start: int | None = None
        self._has_replayed = self._has_progressed = False
        self._is_holding = can_replay
        self._is_verified = True
        self._last_digest = 0
        self._last_ts = 0.0
        self._held: dict[int, EventBatch] = {}
        self._num_held_blocks = 0

    def __repr__(self) -> str:
        where = f"epoch={self.epoch}, next_seq={self.next_seq}, held={len(self._held)}"
        return f"Stream({self.state.value}, {where})"

    @property
    def state(self) -> StreamState:
        if self._is_holding:
            return StreamState.CATCHING_UP
        if self._is_awaiting:
            return StreamState.UNPROVEN
        return StreamState.BLIND if self.reason else StreamState.EXACT

    @property
    def reason(self) -> str | None:
        """Why the stream is BLIND or UNPROVEN, or would be without the replay under way."""
        if self._is_awaiting:
            return f"{AWAITING_PROOF}{self.owner_doubt}"
        if self.owner_doubt and not self.is_awaiting_proof:
            return f"{NOT_PROVEN}{self.owner_doubt}"
        return self.blind_reason

    @property
    def _is_awaiting(self) -> bool:
        """Return True while nothing is wrong but that the owner is not proven yet. Without a replay endpoint
        nothing shows that events of this worker were missed."""
        is_well = self.blind_reason is None or self.blind_reason == NO_REPLAY
        return self.owner_doubt is not None and self.is_awaiting_proof and is_well

    @property
    def position(self) -> Position:
        return Position(self.next_seq, self._last_digest, self._last_ts)

    # inputs ------------------------------------------------------------------------------------

    def adopt(self, position: Position, blind_reason: str | None = None) -> None:
        """Go on where another reader of this stream got to (the index has what that one applied), or
        from the start. Only for streams with replays, which prove that it is the same engine process."""
        self.next_seq, self._last_digest, self._last_ts = position.next_seq, position.digest, position.ts
        is_proven = not (blind_reason or "").startswith((NOT_PROVEN, AWAITING_PROOF))  # a question of its own
        self.blind_reason = (blind_reason if is_proven else None) if self.can_replay else NO_REPLAY
        self._is_holding, self._replay_start, self._held = self.can_replay, None, {}

    def connected(self) -> list[Command]:
        """The transport is up, for the first time or again."""
        return [self._ask()] if self.can_replay else []

    def disconnected(self) -> list[Command]:
        """The transport is gone; a replay must prove that the same engine process comes back."""
        if not self.can_replay:
            return self._lose("disconnected, without a replay endpoint")
        self._is_holding = True
        self._replay_start = None
        self._held = {}  # if it is the same engine the replay has them, if not they are worth nothing
        return []

    def resync(self) -> list[Command]:
        """Ask for a replay of everything again: after one without an answer, or a doubt."""
        return self._start_afresh("resync")

    def live(self, batch: EventBatch) -> list[Command]:
        if self._is_holding:
            return self._hold(batch)
        if batch.seq == self.next_seq:
            return [self._apply(batch)]
        if batch.seq > self.next_seq:
            return self._gap(batch)
        if batch.ts <= self._last_ts:
            self.counts.num_repeats += 1
            return []
        commands = self._start_afresh(RESTARTED)
        return commands + self.live(batch)

    def undecodable(self, seq: int, *, is_replay: bool) -> list[Command]:
        """A batch that cannot be read; what it stored or removed stays unknown."""
        self.counts.num_undecodable += 1
        if self._is_holding and not is_replay:
            return []  # the replay brings it again, in its turn
        commands = self._lose("a batch could not be decoded")
        self.next_seq = seq + 1
        self._last_digest = 0
        return commands

    def doubt(self, reason: str) -> None:
        """Go BLIND: an event did not fit the known blocks, so some events are missing."""
        self.blind_reason = self.blind_reason or reason

    def replayed(self, batch: EventBatch) -> list[Command]:
        if self._replay_start is None or batch.seq < self.next_seq - 1:
            return []
        has_replayed, self._has_replayed = self._has_replayed, True
        if batch.seq == self.next_seq - 1:
            return self._verify(batch)
        if self._is_verified and batch.seq == self.next_seq:
            self._has_progressed = True
            return [self._apply(batch)]
        if has_replayed:
            return self._hold(batch)  # some were dropped on their way; they are asked for again
        return [*self._lose("the replay buffer no longer has the missed batches"), self._apply(batch)]

    def replay_ended(self) -> list[Command]:
        if self._replay_start is None:
            return []
        if not self._is_verified:
            return self._start_afresh(RESTARTED)
        return self._resume()

    def replay_stalled(self) -> list[Command]:
        """Ask again for the rest of a replay that stopped arriving, if it made progress."""
        return [self._ask()] if self._replay_start is not None and self._has_progressed else []

    def cut(self, reason: str) -> list[Command]:
        """Forget the worker's blocks and go BLIND; its events are not read until it is `connected` again."""
        self.counts.num_cuts += 1
        self._is_holding, self._replay_start, self._held, self._num_held_blocks = False, None, {}, 0
        self.blind_reason, self._is_verified = reason, True
        self.next_seq, self._last_digest, self._last_ts = 0, 0, 0.0
        return [self._reset(reason)]

    def replay_failed(self) -> list[Command]:
        if not self._is_holding:
            return []
        self._held = {seq: batch for seq, batch in self._held.items() if seq >= self.next_seq}
        return self._lose("replay failed") + self._drain()

    # transitions -------------------------------------------------------------------------------

    def _ask(self) -> AskReplay:
        self._is_holding = True
        self._is_verified = not self.next_seq or not self._last_digest
        self._replay_start = max(self.next_seq - 1, 0)
        self._has_replayed = self._has_progressed = False
        return AskReplay(self._replay_start)

    def _hold(self, batch: EventBatch) -> list[Command]:
        self._keep(batch)
        is_full = len(self._held) > self.max_held or self._num_held_blocks > self.max_held_blocks
        return self.replay_failed() if is_full else []

    def _keep(self, batch: EventBatch) -> None:
        if not self._held:
            self._num_held_blocks = 0
        self._held[batch.seq] = batch
        self._num_held_blocks += sum(map(num_blocks, batch.events))

    def _apply(self, batch: EventBatch) -> Apply:
        self.next_seq = batch.seq + 1
        self._last_digest = batch.digest
        self._last_ts = batch.ts
        self._is_verified = True
        self.counts.num_batches += 1
        if batch.seq == 0 or any(isinstance(event, BlocksCleared) for event in batch.events):
            self.blind_reason = None  # an empty cache is known completely
        return Apply(batch)

    def _gap(self, batch: EventBatch) -> list[Command]:
        if self.next_seq:
            self.counts.num_gaps += 1
        if self.can_replay:
            self._keep(batch)
            return [self._ask()]
        if not self.next_seq and self.counts.num_cuts and self.blind_reason:
            return [*self._lose(self.blind_reason), self._apply(batch)]  # it is read again, from somewhere on
        return [*self._lose("a gap without a replay endpoint"), self._apply(batch)]

    def _lose(self, reason: str) -> list[Command]:
        """Batches are gone for good. Removals may be among them, so what we had is worth nothing."""
        self.blind_reason = reason
        self._is_verified = True
        commands: list[Command] = [self._reset(reason)] if self.next_seq else []
        self.next_seq = 0
        return commands

    def _reset(self, reason: str) -> Reset:
        self.counts.num_resets += 1
        self.epoch += 1
        return Reset(reason)

    def _start_afresh(self, reason: str) -> list[Command]:
        commands: list[Command] = [self._reset(reason)]
        self.next_seq = 0
        self._last_digest, self._last_ts = 0, 0.0
        self.blind_reason = None
        if self.can_replay:
            return [*commands, self._ask()]
        return commands

    def _verify(self, batch: EventBatch) -> list[Command]:
        if self._last_digest and batch.digest != self._last_digest:
            return self._start_afresh(RESTARTED)
        self._is_verified = True
        return []

    def _resume(self) -> list[Command]:
        """The replay is complete: go on with what was held, or ask again if a hole is left."""
        first = min((seq for seq in self._held if seq >= self.next_seq), default=self.next_seq)
        if first > self.next_seq and self._has_progressed:
            return [self._ask()]
        if first > self.next_seq:
            return self._lose("the replay left a gap") + self._drain()
        return self._drain()

    def _drain(self) -> list[Command]:
        held = sorted(self._held.items())
        self._held = {}
        self._is_holding, self._replay_start = False, None
        return list(self._follow(held))

    def _follow(self, held: list[tuple[int, EventBatch]]) -> Iterator[Command]:
        for seq, batch in held:
            if seq < self.next_seq:
                self.counts.num_repeats += 1
            elif self.blind_reason and seq > self.next_seq and not self._is_holding:
                yield from [*(self._lose(self.blind_reason)), self._apply(batch)]
            else:
                yield from self.live(batch)
