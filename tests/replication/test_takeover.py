"""State that the next leader restores from a snapshot and the log behind it."""

import pytest

from gateway.core.event_stream import Position, StreamState
from gateway.core.kv_events import BlocksRemoved
from gateway.index.inventory import Inventory
from gateway.replication.codec import encode
from gateway.replication.follower import Cursor
from gateway.replication.journal import Journal
from gateway.replication.messages import AgentStatus, LogBatch
from gateway.replication.takeover import Takeover, restore
from tests.index.contract import ROOT, stored

EXACT = AgentStatus(StreamState.EXACT)
E, AT = 7, Position(3, 9, 1.0)


class Left:
    def __init__(self) -> None:
        self.inventory = Inventory(ROOT, 4)
        self.journal = Journal(self.inventory.snapshot, E)
        self.store(range(8), [1, 2])
        self.parts = list(self.journal.snapshot().parts)
        self.log = [(E, encode(EXACT))]

    def store(self, ids: range, names: list[int], parent: int | None = None) -> None:
        self.journal.append(self.inventory.apply(stored(ids, names, parent=parent)), AT)

    def more(self, position: Position | None = AT) -> None:
        self.journal.append(self.inventory.apply(BlocksRemoved([2])), position)
        self.log.append((E, self.journal.at(self.journal.next_seq - 1)))

    def inherited(self) -> Takeover | None:
        return restore(ROOT, 4, self.parts, self.log)


@pytest.fixture
def left() -> Left:
    return Left()


def test_all_updates_are_restored(left: Left) -> None:
    left.more()
    found = left.inherited()
    assert found
    assert sorted(found.inventory.blocks()) == sorted(left.inventory.blocks())
    assert (found.cursor, found.position, found.status) == (Cursor(E, 2), AT, EXACT)


def test_entries_included_in_the_snapshot_are_skipped(left: Left) -> None:
    left.log.insert(0, (E, left.journal.at(0)))
    found = left.inherited()
    assert found and found.inventory.num_blocks == 2 and found.cursor == Cursor(E, 1)


def test_a_truncated_batch_of_the_engine_has_no_position(left: Left) -> None:
    left.more(None)
    found = left.inherited()
    assert found and found.position is None


def test_an_incomplete_log_is_not_restored(left: Left) -> None:
    assert restore(ROOT, 4, [], []) is None
    assert restore(ROOT, 4, [], left.log) is None
    assert restore(ROOT, 4, [b"\xff\xff"], []) is None
    gap = encode(LogBatch(E, 5, [], AT))
    for odd in ((E + 1, left.log[0][1]), (E, b"\xff\xff"), (E, gap)):
        assert restore(ROOT, 4, left.parts, [*left.log, odd]) is None


def test_blocks_without_their_parents_are_not_restored(left: Left) -> None:
    other = Inventory(ROOT, 4)
    other.apply(stored(range(4), [50]))
    orphans = encode(LogBatch(E, 1, other.apply(stored(range(4, 8), [51], parent=50)), AT))
    assert restore(ROOT, 4, left.parts, [*left.log, (E, orphans)]) is None
