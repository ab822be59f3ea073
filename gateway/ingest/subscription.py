"""One worker's events, applied: transport in, stream state machine, index.

The transport (`zmq.py`, `poll.py`) calls `connected`, `disconnected`, `live`, `polled`, `replayed`,
`replay_ended`, `replay_failed`; commands of the state machine are carried out here, in order and in
portions: what is left of a large one waits for `go_on`, and new ones wait behind it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.core.engine import Engine
from gateway.core.events import DecodeError, EventBatch, KvEvent
from gateway.core.stream import RESTARTED, Apply, AskReplay, Command, Reset, Stream, StreamState
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import BlockSets, Healed
from gateway.index.healing import Healing
from gateway.ingest.portions import PORTION_BLOCKS, num_blocks, portions
from gateway.ingest.shelved import Shelved

log = logging.getLogger("kvgate.ingest")

_SEQ_BYTES = 8


class Subscription:
    """`ask_replay` starts a replay from a sequence number, in place of one under way. `behind` is told
    that `go_on` has something to do."""

    def __init__(
        self,
        worker: WorkerId,
        *,
        engine: Engine,
        index: BlockSets,
        assumed: AssumedIndex,
        can_replay: bool,
        on_state: Callable[[WorkerId, StreamState], None],
        healing: Healing | None = None,
    ) -> None:
        """`healing` takes the events of a stream that is or was BLIND to `index` in place of this."""
        self.worker = worker
        self.healing = healing
        self.stream = Stream(can_replay=can_replay)
        self.ask_replay: Callable[[int], None] = lambda start_seq: None
        self.behind: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self._todo: deque[Command] = deque()
        self._rest: Iterator[KvEvent] | None = None  # of the batch that is first in `_todo`
        self._num_bad = 0  # events that could not be placed before that batch
        self._engine = engine
        self._index = index
        self._assumed = assumed
        self._on_state = on_state
        self._last_state: StreamState | None = None
        self._num_doubts = 0
        self._resynced_epoch = -1
        self._wants_resync = False
        self._logged_errors = 0

    def __repr__(self) -> str:
        return f"Subscription({self.worker}, {self.stream})"

    def connected(self) -> None:
        self._run(self.stream.connected())

    def disconnected(self) -> None:
        self._run(self.stream.disconnected())

    def live(self, frames: Sequence[bytes]) -> None:
        try:
            batch = self._engine.decode(frames)
        except DecodeError as exc:
            return self._undecodable(frames, exc, is_replay=False)
        self._run(self.stream.live(batch))

    def polled(self, body: bytes, block_size: int, now: float) -> None:
        """What a worker had to tell when it was asked at the time `now`."""
        try:
            batches = self._engine.decode_poll(body, block_size, now)
        except DecodeError as exc:
            return self._undecodable((), exc, is_replay=False)
        for batch in batches:
            self._run(self.stream.live(batch))

    def replayed(self, frames: Sequence[bytes]) -> bool:
        """One answer of a replay; True if it was the last."""
        try:
            batch = self._engine.decode_replay(frames)
        except DecodeError as exc:
            self._undecodable(frames, exc, is_replay=True)
            return False
        if batch is None:
            self._run(self.stream.replay_ended())
            return True
        self._run(self.stream.replayed(batch))
        return False

    def replay_stalled(self) -> bool:
        """A replay ended without its end mark; True if it goes on from where it got to."""
        commands = self.stream.replay_stalled()
        self._run(commands)
        return bool(commands)

    def replay_failed(self, reason: str) -> None:
        log.warning("worker %s: replay of KV events failed: %s", self.worker, reason)
        self._run(self.stream.replay_failed())

    def resync(self) -> None:
        """Try again what a failed replay did not bring; nothing to do if the stream has healed."""
        if self.stream.state is StreamState.BLIND:
            self._run(self.stream.resync())

    def close(self) -> None:
        """Nothing more comes."""
        self.on_close()

    def shelved(self, index: Healed) -> Shelved | None:
        """What takes the place of `index`, our own, for healing; None: that is where events go."""
        return None

    def go_on(self) -> bool:
        """Carry out a portion of what is to be done; whether some is left."""
        room = PORTION_BLOCKS
        self._tell_healing()
        while self._todo and room > 0:
            command = self._todo[0]
            if isinstance(command, Apply):
                room = self._apply(command.batch, room)
                if self._rest is not None:
                    break
            self._todo.popleft()
            match command:
                case Reset(reason):
                    log.info("worker %s: its blocks are forgotten: %s", self.worker, reason)
                    self._index.reset_worker(self.worker)
                    self._assumed.reset_worker(self.worker)
                    if self.healing:
                        self.healing.reset(is_restart=reason == RESTARTED)
                case AskReplay(start_seq):
                    self.ask_replay(start_seq)
            if not self._todo and self._wants_resync:
                self._wants_resync = False
                self._todo.extend(self.stream.resync())
                self._resynced_epoch = self.stream.epoch
        if self._todo:
            return True
        if self.stream.state is not self._last_state:
            self._last_state = self.stream.state
            self._on_state(self.worker, self.stream.state)
        return False

    def _run(self, commands: Iterable[Command]) -> None:
        self._todo.extend(commands)
        if self.go_on():
            self.behind()

    def _apply(self, batch: EventBatch, room: int) -> int:
        """As much of it as there is room for, in blocks; the room that is left. `_rest` is None behind it."""
        if self._rest is None:
            self._rest, self._num_bad = portions(batch.events), self._count_bad()
        healing = self.healing if self.healing and self.healing.was_blind else None
        for event in self._rest:
            if healing:
                healing.apply(event)
            else:
                self._index.apply(self.worker, event)
            room -= num_blocks(event)
            if room <= 0:
                return room
        self._rest = None
        if self._count_bad() > self._num_bad:
            self._doubt(batch)
        return room

    def _count_bad(self) -> int:
        applied = self._index.applied(self.worker)
        return applied.num_orphans + applied.num_mismatched

    def _tell_healing(self) -> None:
        if self.healing:
            self.healing.tell(is_blind=self.stream.blind_reason is not None)

    def _doubt(self, batch: EventBatch) -> None:
        """Blocks that cannot be placed: what we know of this worker is not complete.

        A replay from the start may tell (an event that was lost on the way, say). It is asked for
        once per epoch: if it does not, the engine itself speaks of what it never announced.
        """
        self._num_doubts += 1
        if self._num_doubts == 1:
            log.warning(
                "worker %s: batch %d has blocks with an unknown parent or another block size "
                "(further ones are counted, not logged)",
                self.worker,
                batch.seq,
            )
        was_exact = self.stream.state is StreamState.EXACT
        self.stream.doubt("blocks with an unknown parent or another block size")
        if self.healing and not self.healing.was_blind:
            self._tell_healing()
            self.healing.look_back(batch.events)
        if was_exact and self.stream.can_replay and self.stream.epoch != self._resynced_epoch:
            self._wants_resync = True  # behind what is being carried out now

    def _undecodable(self, frames: Sequence[bytes], exc: DecodeError, *, is_replay: bool) -> None:
        self._logged_errors += 1
        if self._logged_errors == 1:
            log.warning(
                "worker %s: KV events cannot be decoded, is it another engine? %s "
                "(further ones are counted, not logged)",
                self.worker,
                exc,
            )
        seq = _sequence(frames)
        if seq is not None:
            return self._run(self.stream.undecodable(seq, is_replay=is_replay))
        self.stream.counts.num_undecodable += 1
        self.stream.doubt("a message without a sequence number")
        self._run(())


def _sequence(frames: Sequence[bytes]) -> int | None:
    """The sequence number beside the payload, where there is one to read."""
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        return None
    return int.from_bytes(frames[-2], "big")
