"""Subscription that applies one worker's events: from the transport through the stream state machine to the
index.

The transport (`zmq.py`, `poll.py`) calls `connected`, `disconnected`, `live`, `polled`, `replayed`,
`replay_ended`, `replay_failed`; commands of the state machine are executed here, in order and in portions:
the rest of a large one waits for `continue_work`, and new ones wait behind it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.core.block_limits import BlockLimits, block_limits
from gateway.core.blocks import Tokens
from gateway.core.engine import Engine
from gateway.core.event_stream import RESTARTED, Apply, AskReplay, Command, Reset, Stream, StreamState
from gateway.core.kv_events import (
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
    ReplayUnavailable,
    num_blocks,
)
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import BlockSets, RecoveryIndex, RecoveryTarget
from gateway.index.blind_recovery import BlindRecovery
from gateway.ingest.block_size import SizeEvidence, is_whole
from gateway.ingest.chunks import PORTION_BLOCKS, portions
from gateway.ingest.tier_chunks import TierChunks
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.ingest")

_SEQ_BYTES = (8, 24)  # 24: with the publisher's id
SMALL_BYTES = 64 << 10
"""Size up to which messages are decoded in one go, in a millisecond or two."""
MIN_COST = 4
"""Blocks that an event counts for at least in a portion, since each takes some time."""


class Subscription:
    """Applies one worker's events. `ask_replay` starts a replay from a sequence number, replacing one under
    way.

    `behind` is called when `continue_work` has something to do, `on_cut` when reading must pause for as many
    seconds as it returns.
    """

    def __init__(
        self,
        worker: WorkerId,
        *,
        engine: Engine,
        index: BlockSets,
        assumed: AssumedIndex,
        can_replay: bool,
        on_state: Callable[[WorkerId, StreamState], None],
        recovery: BlindRecovery | None = None,
        limits: BlockLimits | None = None,
        size: SizeEvidence | None = None,
    ) -> None:
        """Create a subscription. `recovery` receives the events of a stream that is or was BLIND instead of
        `index`; `limits` bound the worker's blocks, and `size` looks for their size."""
        self.worker = worker
        self.recovery = recovery
        self.stream = Stream(can_replay=can_replay)
        self.ask_replay: Callable[[int], None] = lambda start_seq: None
        self.behind: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self.on_cut: Callable[[], float] = lambda: 0.0
        self._log, self._limits = RateLimitedLog(log), limits or block_limits(None)
        self._size = size or SizeEvidence(None)
        self._chunks = TierChunks(self._size.size)
        self._named: set[str] = set()  # media that are not followed in whole, which the log has named
        self._decoding: Iterator[EventBatch | None] | None = None
        self._advance: Callable[[EventBatch], list[Command]] = self.stream.live
        self._frames: Sequence[bytes] = ()
        self._is_replay = False  # of the message being decoded
        self._unchecked = 0  # blocks applied since the limits were checked
        self._todo: deque[Command] = deque()
        self._rest: Iterator[KvEvent] | None = None  # of the batch that is first in `_todo`
        self._num_bad = 0  # events that could not be placed before that batch
        self._engine, self._index, self._assumed = engine, index, assumed
        self._on_state = on_state
        self._last_state: StreamState | None = None
        self._resynced_epoch = -1
        self._wants_resync = self._is_live = False
        self.is_disowned = False  # its events are another worker's, and no longer applied

    def __repr__(self) -> str:
        return f"Subscription({self.worker}, {self.stream})"

    def connected(self) -> None:
        self._is_live = True
        self._run(self.stream.connected())

    def disconnected(self) -> None:
        self._is_live = False
        self._decoding = None  # another engine may come next
        self._run(self.stream.disconnected())

    def live(self, frames: Sequence[bytes]) -> None:
        if _is_large(frames):
            return self._decode_in_steps(frames, is_replay=False)
        try:
            batch = self._engine.decode(frames)
        except DecodeError as exc:
            return self._undecodable(frames, exc, is_replay=False)
        self._run(self.stream.live(batch))

    def polled(self, body: bytes, block_size: int, now: float) -> None:
        """Apply a worker's answer to a poll at the time `now`."""
        if len(body) > SMALL_BYTES:
            self._decoding, self._advance = (
                self._engine.decode_poll_in_steps(body, block_size, now),
                self.stream.live,
            )
            self._frames, self._is_replay = (), False
            return self._run(())
        try:
            batches = self._engine.decode_poll(body, block_size, now)
        except DecodeError as exc:
            return self._undecodable((), exc, is_replay=False)
        for batch in batches:
            self._run(self.stream.live(batch))

    def replayed(self, frames: Sequence[bytes]) -> bool:
        """Apply one answer of a replay; True if it was the last."""
        if _is_large(frames):
            self._decode_in_steps(frames, is_replay=True)
            return False
        try:
            batch = self._engine.decode_replay(frames)
        except ReplayUnavailable:
            return False  # as if it were silent: it is asked again, a few times
        except DecodeError as exc:
            self._undecodable(frames, exc, is_replay=True)
            return False
        if batch is None:
            self._run(self.stream.replay_ended())
            return True
        self._run(self.stream.replayed(batch))
        return False

    def replay_stalled(self) -> bool:
        """Handle a replay that ended without its end mark; True if it continues from its position."""
        commands = self.stream.replay_stalled()
        self._run(commands)
        return bool(commands)

    def replay_failed(self, reason: str) -> None:
        self._log.warning("worker %s: replay of KV events failed: %s", self.worker, reason)
        self._run(self.stream.replay_failed())

    def resync(self) -> None:
        """Retry a failed replay; does nothing if the stream has recovered."""
        if self.stream.state is StreamState.BLIND:
            self._run(self.stream.resync())

    @property
    def is_behind(self) -> bool:
        """True while received events are still being applied, so that no more should be read."""
        return bool(self._todo) or self._decoding is not None

    def cut(self, reason: str) -> None:
        """Stop reading for a while, since the worker reports more than may be applied."""
        self._decoding, self._rest, self._wants_resync, self._unchecked = None, None, False, 0
        self._is_live = False
        self._todo.clear()
        pause_s = self.on_cut()
        text = "worker %s: KV events paused for %g s, stream is BLIND: %s"
        self._log.warning(text, self.worker, pause_s, reason)
        self._run(self.stream.cut(reason))

    def doubt_owner(self, reason: str, *, is_fault: bool) -> None:
        """Be UNPROVEN, or BLIND where the reason is a fault, until the owner is proven."""
        self.stream.owner_doubt, self.stream.is_awaiting_proof = reason, not is_fault
        self._run(())

    def prove_owner(self) -> None:
        """Be as exact as the events are: they are this worker's."""
        self.stream.owner_doubt, self.stream.is_awaiting_proof = None, False
        self._run(())

    def disown(self, reason: str) -> None:
        """Forget the worker's blocks and apply no more events: they are another worker's."""
        self.stream.owner_doubt, self.stream.is_awaiting_proof = reason, False
        self.is_disowned = True
        self._decoding, self._rest, self._wants_resync = None, None, False
        self._todo.clear()
        self._run([Reset(reason)])

    @property
    def is_read(self) -> bool:
        """True while events are applied as they come: it is connected, and neither replayed nor behind."""
        return self._is_live and not self.is_behind and self.stream.state is not StreamState.CATCHING_UP

    def has_orphan(self, tokens: Tokens, block_size: int) -> bool:
        """Return True if blocks of unknown place begin with a block of `tokens`."""
        if self.recovery is None or not len(self.recovery.orphans):
            return False
        starts = range(0, len(tokens) - block_size + 1, block_size)
        return any(self.recovery.orphans.beginning(tokens[at : at + block_size]) for at in starts)

    def close(self) -> None:
        """End the subscription."""
        self.on_close()

    def recovery_target(self, index: RecoveryIndex) -> RecoveryTarget | None:
        """Return the recovery target that replaces `index`; None where events go into the index."""
        return None

    def continue_work(self) -> bool:
        """Process a portion of the pending commands; True if some are left."""
        room = PORTION_BLOCKS
        self._update_recovery()
        if not self._todo and self._decoding is not None:
            self._step()
        while self._todo and room > 0:
            command = self._todo[0]
            if isinstance(command, Apply):
                room = self._apply(command.batch, room)
                if (reason := self._excess()) is not None:
                    self.cut(reason)
                    return False
                if self._rest is not None:
                    break
            self._todo.popleft()
            self._carry_out(command)
            if not self._todo and self._wants_resync:
                self._wants_resync = False
                self._todo.extend(self.stream.resync())
                self._resynced_epoch = self.stream.epoch
        if self.is_behind:
            return True
        if self.stream.state is not self._last_state:
            self._last_state = self.stream.state
            self._on_state(self.worker, self.stream.state)
        return False

    def _carry_out(self, command: Command) -> None:
        match command:
            case Reset(reason):
                self._log.info("worker %s: dropping its blocks: %s", self.worker, reason)
                if not self._is_sizeless:
                    self._index.reset_worker(self.worker)
                self._size.forget()
                self._assumed.reset_worker(self.worker)
                self._chunks.reset()
                if self.recovery:
                    self.recovery.reset(is_restart=reason == RESTARTED)
            case AskReplay(start_seq):
                self.ask_replay(start_seq)

    def _run(self, commands: Iterable[Command]) -> None:
        self._todo.extend(commands)
        if self.continue_work():
            self.behind()

    def _decode_in_steps(self, frames: Sequence[bytes], *, is_replay: bool) -> None:
        self._frames, self._is_replay = frames, is_replay
        self._advance = self.stream.replayed if is_replay else self.stream.live
        try:
            self._decoding = self._engine.decode_in_steps(frames, is_replay=is_replay)
        except DecodeError as exc:
            return self._undecodable(frames, exc, is_replay=is_replay)
        self._run(())

    def _step(self) -> None:
        """Decode a part of a large message."""
        assert self._decoding is not None
        try:
            batch = next(self._decoding)
        except StopIteration:
            self._decoding = None
        except DecodeError as exc:
            self._decoding = None
            self._undecodable(self._frames, exc, is_replay=self._is_replay)
        else:
            if batch is not None:
                self._todo.extend(self._advance(batch))

    def _apply(self, batch: EventBatch, room: int) -> int:
        """Apply a batch as far as there is room, in blocks; returns the room that is left. `_rest` is None at
        its end."""
        if self._rest is None:
            if not self._size.is_certain:
                self._look_at_size(batch)
            if self._is_sizeless or self.is_disowned:
                return room
            applied, self._num_bad = self._index.applied(self.worker), self._count_bad()
            self._rest = portions(self._chunks.in_blocks(batch.events, applied))
        recovery = self.recovery if self.recovery and self.recovery.was_blind else None
        before = room
        for event in self._rest:
            if recovery:
                recovery.apply(event)
            else:
                self._index.apply(self.worker, event)
            room -= max(num_blocks(event), MIN_COST)
            if room <= 0:
                self._unchecked += before - room
                return room
        self._rest = None
        self._unchecked += before - room
        self._name_unplaced()
        if self._count_bad() > self._num_bad:
            self._doubt(batch)
        return room

    @property
    def _is_sizeless(self) -> bool:
        """Return True while the worker's block size is being looked for, so that nothing can be placed."""
        return self._size.size is None and not self._size.is_certain

    def _look_at_size(self, batch: EventBatch) -> None:
        """Look for the worker's block size in a batch. Where blocks were ignored before it was known, a
        replay may bring them again."""
        num_missed = self._size.num_smaller
        if self._size.look(batch.events):
            self._chunks = TierChunks(self._size.size)
            if num_missed:
                self.stream.doubt("blocks came before their size was known")
                self._wants_resync = self.stream.can_replay

    def _excess(self) -> str | None:
        """Return why the worker has too many blocks, or None; checked after each portion."""
        if self._unchecked < PORTION_BLOCKS:
            return None
        self._unchecked = 0
        on_gpu = self._index.num_kept(self.worker, on_gpu=True)
        offloaded, most = self._index.num_kept(self.worker, on_gpu=False), self._limits.offloaded
        self._chunks.is_full = offloaded > most  # which is no reason to forget what is on the GPU
        return self._limits.exceeded(on_gpu, min(offloaded, most))

    def _count_bad(self) -> int:
        applied = self._index.applied(self.worker)
        return applied.num_orphans + applied.num_mismatched

    def _name_unplaced(self) -> None:
        """Log each medium other than the GPU once, when blocks there cannot be placed."""
        unplaced = self._index.applied(self.worker).unplaced
        if len(unplaced) == len(self._named):
            return
        for medium in unplaced.keys() - self._named:
            why = "they name unknown blocks, partial blocks or unknown fields"
            if self._chunks.is_full:
                most = self._limits.offloaded
                why = f"more than {most:,} blocks are outside the GPU (offload_blocks raises that)"
            text = (
                "worker %s: KV events of medium %s are only partly followed: %s; those of the GPU still are"
            )
            self._log.warning(text, self.worker, medium, why)
        self._named |= unplaced.keys()

    def _update_recovery(self) -> None:
        if self.recovery:
            self.recovery.set_blind(is_blind=self.stream.blind_reason is not None)

    def _doubt(self, batch: EventBatch) -> None:
        """Resync after blocks that cannot be placed: the index misses blocks of this worker.

        A replay from the start may bring them (an event may have been lost on the way). It is requested once
        per epoch: if it does not help, the engine refers to blocks that it never announced.
        """
        size = self._size.size
        whole = (event for event in batch.events if isinstance(event, BlocksStored) and is_whole(event))
        if other := next((event.block_size for event in whole if size and event.block_size != size), None):
            text = "worker %s: batch %d has blocks of %d tokens, not of %d"
            self._log.warning(text, self.worker, batch.seq, other, size)
        else:
            text = "worker %s: batch %d has blocks with an unknown parent or tokens that do not fit them"
            self._log.warning(text, self.worker, batch.seq)
        was_exact = self.stream.state is StreamState.EXACT
        self.stream.doubt("blocks with an unknown parent or another block size")
        if self.recovery and not self.recovery.was_blind:
            self._update_recovery()
            self.recovery.look_back(batch.events)
        if was_exact and self.stream.can_replay and self.stream.epoch != self._resynced_epoch:
            self._wants_resync = True  # after the current command

    def _undecodable(self, frames: Sequence[bytes], exc: DecodeError, *, is_replay: bool) -> None:
        text = "worker %s: KV events cannot be decoded (%s); is another engine at this port?"
        self._log.warning(text, self.worker, exc)
        seq = _sequence(frames)
        if seq is not None:
            return self._run(self.stream.undecodable(seq, is_replay=is_replay))
        self.stream.counts.num_undecodable += 1
        self.stream.doubt("a message without a sequence number")
        self._run(())


def _is_large(frames: Sequence[bytes]) -> bool:
    return bool(frames) and len(frames[-1]) > SMALL_BYTES


def _sequence(frames: Sequence[bytes]) -> int | None:
    """Return the sequence number beside the payload, or None."""
    if len(frames) < 2 or len(frames[-2]) not in _SEQ_BYTES:
        return None
    return int.from_bytes(frames[-2][:8], "big")
