"""Log and snapshot: every reader, however often interrupted, has exactly the applied blocks."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.event_stream import Position, Reset, StreamCounts, StreamState
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from gateway.index import inventory as inventory_module
from gateway.index.inventory import Inventory
from gateway.index.memory import MemoryIndex
from gateway.index.reference import ReferenceIndex
from gateway.replication import journal as journal_module
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.journal import Journal, JournalReader
from gateway.replication.messages import AgentStatus, BlockSample, LogBatch, SnapshotPart
from tests.index.contract import ROOT, A, prompt, stored

EXACT = AgentStatus(StreamState.EXACT)


class Gateway:
    """Gateway that reads at its own pace, over a connection that may break."""

    def __init__(self, journal: Journal) -> None:
        self.index = MemoryIndex()
        self.index.add_worker(A, ROOT, 4)
        self.follower = Follower(StreamCounts())
        self.connect(journal)

    def connect(self, journal: Journal) -> None:
        self.follower.lost()
        self.journal = journal
        self.reader: JournalReader = journal.read(self.follower.cursor.epoch, self.follower.cursor.next_seq)
        self.last: bytes | None = None

    def step(self) -> bool:
        """Read one message; False if there is none."""
        self.last = self.reader.next()
        if self.last is not None:
            self.take(self.last)
        return self.last is not None

    def take(self, data: bytes) -> None:
        try:
            changes = self.follower.advance(decode(data))
        except LogError:
            return self.connect(self.journal)
        for change in changes:
            if isinstance(change, Reset):
                self.index.reset_worker(A)
            else:
                self.index.apply(A, change)
        applied = self.index.applied(A)
        assert (applied.num_orphans, applied.num_mismatched, applied.num_unknown_removals) == (0, 0, 0)
        return None


class JournalMachine(RuleBasedStateMachine):
    """State machine of an engine, its agent and three gateways. Limits are small: a short log, tiny parts."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(inventory_module, "PART_BLOCKS", 2)
        self.patch.setattr(journal_module, "PART_BLOCKS", 2)
        self.truth = ReferenceIndex()
        self.truth.add_worker(A, ROOT, 4)
        self.epoch = 0
        self.history: list[KvEvent] = []
        self.start_agent()
        self.gateways = [Gateway(self.journal) for _ in range(3)]

    def teardown(self) -> None:
        self.patch.undo()

    def start_agent(self) -> None:
        """Start the agent; the engine replays its batches since it began."""
        self.inventory = Inventory(ROOT, 4)
        self.epoch += 1
        self.journal = Journal(self.inventory.snapshot, self.epoch, max_bytes=400)
        for event in self.history:
            self.log(event)

    def log(self, event: KvEvent) -> None:
        self.journal.append(self.inventory.apply(event), Position(len(self.history), 1, 1.0))
        self.journal.status = EXACT

    def happens(self, event: KvEvent) -> None:
        self.history.append(event)
        self.truth.apply(A, event)
        self.log(event)

    @rule(start=st.integers(0, 2), num=st.integers(1, 6), medium=st.sampled_from(["GPU", "GPU", "CPU"]))
    def store(self, start: int, num: int, medium: str) -> None:
        """Store one of three conversations, from its first block on."""
        ids = [start * 100 + i for i in range(num * 4)]
        names = [start * 100 + i + 1 for i in range(num)]
        self.happens(stored(ids, names, medium=medium))

    @rule(start=st.integers(0, 2), at=st.integers(1, 6), medium=st.sampled_from(["GPU", "GPU", "CPU"]))
    def remove(self, start: int, at: int, medium: str) -> None:
        self.happens(BlocksRemoved([start * 100 + at], medium))

    @rule()
    def clear(self) -> None:
        self.happens(BlocksCleared())

    @rule()
    def engine_restarts(self) -> None:
        self.history.clear()
        self.truth.reset_worker(A)
        self.inventory.reset()
        self.epoch += 1
        self.journal.begin(self.epoch)
        self.journal.status = EXACT

    @rule()
    def agent_restarts(self) -> None:
        self.start_agent()
        for gateway in self.gateways:
            gateway.connect(self.journal)

    @rule(which=st.integers(0, 2), num=st.integers(1, 8))
    def reads(self, which: int, num: int) -> None:
        for _ in range(num):
            self.gateways[which].step()

    @rule(which=st.integers(0, 2))
    def loses_its_connection(self, which: int) -> None:
        """Break the connection; messages that the reader took off the log are lost with it."""
        self.gateways[which].reader.next()
        self.gateways[which].connect(self.journal)

    @rule(which=st.integers(0, 2))
    def a_message_is_lost(self, which: int) -> None:
        self.gateways[which].reader.next()

    @rule(which=st.integers(0, 2))
    def a_message_comes_twice(self, which: int) -> None:
        if last := self.gateways[which].last:
            self.gateways[which].take(last)

    @rule(which=st.integers(0, 2))
    def catches_up(self, which: int) -> None:
        gateway = self.gateways[which]
        gateway.connect(self.journal)
        while gateway.step():
            pass
        assert gateway.follower.state is self.journal.status.state
        assert gateway.follower.cursor == Cursor(self.journal.epoch, self.journal.next_seq)
        assert sorted(gateway.index.blocks(A)) == sorted(self.truth.blocks(A))
        sample = decode(gateway.reader.sample(self.inventory, random.Random(len(self.history))))
        assert isinstance(sample, BlockSample) and gateway.follower.advance(sample) == []
        assert sample.num_blocks == gateway.index.num_blocks(A)
        assert gateway.index.holds(A, sample.path)
        for start in range(3):
            run = prompt([start * 100 + i for i in range(24)])
            assert gateway.index.media(run) == self.truth.media(run)

    @invariant()
    def the_log_is_bounded(self) -> None:
        assert sum(map(len, self.journal._log)) == self.journal._num_bytes <= 400


JournalMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_journal_machine: Any = JournalMachine.TestCase


def made(num: int = 0, max_bytes: int = 1 << 20) -> tuple[Inventory, Journal]:
    """Journal with `num` batches of a block each."""
    inventory = Inventory(ROOT, 4)
    journal = Journal(inventory.snapshot, 5, max_bytes=max_bytes)
    journal.status = EXACT
    more(inventory, journal, num)
    return inventory, journal


def more(inventory: Inventory, journal: Journal, num: int) -> None:
    first = journal.next_seq
    for i in range(first, first + num):
        event = stored(range(i * 4, i * 4 + 4), [i + 1], parent=i or None)
        journal.append(inventory.apply(event), Position(i + 1, 7, 1.0))


def everything(reader: JournalReader) -> Iterator[Any]:
    while (data := reader.next()) is not None:
        yield decode(data)


def kinds(reader: JournalReader) -> list[str]:
    return [type(update).__name__ for update in everything(reader)]


def test_a_new_reader_gets_a_snapshot_then_new_batches() -> None:
    inventory, journal = made(3)
    reader = journal.read()
    assert kinds(reader) == ["SnapshotPart", "AgentStatus"]
    more(inventory, journal, 2)
    assert kinds(reader) == ["LogBatch", "LogBatch"]
    assert repr(reader) == "JournalReader(epoch=5, next_seq=5, snapshots=1)"
    journal.status = AgentStatus(StreamState.CATCHING_UP)
    assert kinds(reader) == ["AgentStatus"]


def test_a_returned_reader_gets_the_batches_that_it_lacks() -> None:
    _, journal = made(5)
    assert [u.seq for u in everything(journal.read(5, 3)) if isinstance(u, LogBatch)] == [3, 4]
    assert kinds(journal.read(5, 5)) == ["AgentStatus"]


@pytest.mark.parametrize("cursor", [(4, 3), (5, 6), (6, 0)])
def test_a_reader_from_another_epoch_gets_a_snapshot(cursor: tuple[int, int]) -> None:
    _, journal = made(5)
    assert kinds(journal.read(*cursor)) == ["SnapshotPart", "AgentStatus"]


def test_a_reader_behind_the_log_gets_a_snapshot() -> None:
    inventory, journal = made(3, max_bytes=500)
    reader = journal.read()
    assert kinds(reader) == ["SnapshotPart", "AgentStatus"]
    more(inventory, journal, 1000)
    assert journal.first_seq > 3 and journal._num_bytes <= 500
    updates = list(everything(reader))
    assert [type(u) for u in updates] == [SnapshotPart, AgentStatus]
    assert sum(len(change.blocks) for change in updates[0].changes) == 1003
    assert reader.num_snapshots == 2


def test_a_snapshot_is_reused_until_the_log_behind_it_is_longer() -> None:
    inventory, journal = made(100)
    assert kinds(journal.read()) == kinds(journal.read()) == ["SnapshotPart", "AgentStatus"]
    assert journal.num_snapshots == 1
    more(inventory, journal, 3)
    assert kinds(journal.read()) == ["SnapshotPart", *["LogBatch"] * 3, "AgentStatus"]
    assert journal.num_snapshots == 1
    more(inventory, journal, 100)
    assert kinds(journal.read()) == ["SnapshotPart", "AgentStatus"]
    assert journal.num_snapshots == 2


def test_a_new_epoch_cuts_a_snapshot() -> None:
    inventory, journal = made()
    journal.append(inventory.apply(stored(range(4 * 3000), list(range(1, 3001)))), None)
    reader = journal.read()
    first = reader.next()
    assert first is not None and not decode(first).is_last  # type: ignore[union-attr]
    inventory.reset()
    journal.begin(6)
    (part, status) = everything(reader)
    assert (part.epoch, part.part, part.is_last, part.changes) == (6, 0, True, [])
    assert status == EXACT


def test_parts_of_a_snapshot_are_small_and_the_last_has_the_position() -> None:
    inventory, journal = made()
    inventory.apply(stored(range(4 * 3000), list(range(1, 3001))))
    inventory.apply(stored(range(4 * 3000), list(range(1, 3001)), medium="CPU"))
    journal.append([], Position(9, 8, 7.0))
    parts = [u for u in everything(journal.read()) if isinstance(u, SnapshotPart)]
    assert [(p.part, p.is_last) for p in parts] == [(i, i == len(parts) - 1) for i in range(len(parts))]
    assert [p.position for p in parts] == [*[None] * (len(parts) - 1), Position(9, 8, 7.0)]
    assert max(map(len, journal.snapshot().parts)) < 40_000


def test_the_repr_of_a_journal_shows_the_state() -> None:
    assert repr(made(2)[1]) == "Journal(epoch=5, next_seq=2, 2 batches, 139 bytes)"


def test_a_store_of_an_engine_is_published_without_tokens() -> None:
    _, journal = made(1)
    (batch,) = (u for u in everything(journal.read(5, 0)) if isinstance(u, LogBatch))
    assert not any(isinstance(change, BlocksStored) for change in batch.changes)
