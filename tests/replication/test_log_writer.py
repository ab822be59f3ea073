"""A journal on its way into a Redis that the test plays: writes, repeated writes, new snapshots, and no
duplicates.
"""

from typing import Any

import pytest

from gateway.core.event_stream import Position, StreamState
from gateway.index.inventory import Inventory
from gateway.replication import log_writer as writer_module
from gateway.replication.codec import decode
from gateway.replication.journal import Journal
from gateway.replication.log_writer import LogWriter
from gateway.replication.messages import AgentStatus, LogBatch, Update
from gateway.replication.rank_store import RankState
from gateway.replication.redis_log import START, Lease, WriteResult
from tests.index.contract import ROOT, stored

EXACT = AgentStatus(StreamState.EXACT)
LEASE = Lease(1, "1:a")


class PlayedLog:
    """Log with the guarantees of `WorkerLog`: all or none, once, behind the last entry."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.parts: list[bytes] = []
        self.is_fenced = self.is_away = self.is_answer_lost = False
        self.kept: list[str] = []

    @property
    def last(self) -> str:
        return next(reversed(self.entries), START)

    async def append(self, lease: Lease, last: str, entries: list[tuple[str, bytes]]) -> WriteResult:
        if self.is_away:
            raise ConnectionError
        if self.is_fenced:
            return WriteResult.FENCED
        if self.last != last:
            return WriteResult.OK if self.last == entries[-1][0] else WriteResult.TORN
        self.entries |= dict(entries)
        if self.is_answer_lost:
            self.is_answer_lost = False
            raise TimeoutError
        return WriteResult.OK

    async def replace(
        self, lease: Lease, parts: Any, keep_from: str, state: tuple[str, bytes]
    ) -> WriteResult:
        if self.is_away:
            raise ConnectionError
        if self.is_fenced:
            return WriteResult.FENCED
        self.parts = list(parts)
        self.kept.append(keep_from)
        if not keep_from:
            self.entries = {}
        self.entries[state[0]] = state[1]
        return WriteResult.OK


class LogWriterWorld:
    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.inventory = Inventory(ROOT, 4)
        self.rank = RankState(self.inventory, Journal(self.inventory.snapshot, 5, max_bytes=max_bytes))
        self.rank.journal.status = EXACT
        self.log: Any = PlayedLog()
        self.writer = LogWriter(self.log, self.rank, self.renumber)

    def renumber(self) -> None:
        journal = self.rank.journal
        journal.begin(journal.epoch + 1, 0, journal.position)

    def store(self, num: int = 1, *, is_whole: bool = True) -> None:
        for _ in range(num):
            i = self.inventory.num_blocks
            changes = self.inventory.apply(stored(range(i * 4, i * 4 + 4), [i + 1], parent=i or None))
            self.rank.journal.append(changes, Position(i, 7, 1.0) if is_whole else None)

    async def write(self) -> bool:
        return await self.writer.write(LEASE)

    def updates(self) -> list[Update]:
        return list(map(decode, self.log.entries.values()))

    def seqs(self) -> list[int]:
        return [each.seq for each in self.updates() if isinstance(each, LogBatch)]


@pytest.fixture
def world() -> LogWriterWorld:
    return LogWriterWorld()


async def test_a_snapshot_is_written_first_then_batches_and_states(world: LogWriterWorld) -> None:
    world.store(2)
    assert await world.write()
    assert len(world.log.parts) == 1 and world.updates() == [EXACT]
    world.store(2)
    world.rank.journal.status = AgentStatus(StreamState.BLIND, "why")
    assert await world.write() and await world.write()
    assert world.seqs() == [2, 3] and world.updates()[-1] == AgentStatus(StreamState.BLIND, "why")
    assert world.writer.has_written_all and not world.writer.num_queued


async def test_a_batch_of_the_engine_is_written_whole(world: LogWriterWorld) -> None:
    await world.write()
    world.store(3, is_whole=False)
    await world.write()
    assert world.seqs() == [] and world.writer.num_queued == 3
    world.store()
    await world.write()
    assert world.seqs() == [0, 1, 2, 3]


async def test_an_unanswered_write_is_stored_once(world: LogWriterWorld) -> None:
    await world.write()
    world.store(2)
    world.log.is_answer_lost = True
    with pytest.raises(TimeoutError):
        await world.write()
    world.store(2)
    await world.write()
    assert world.seqs() == [0, 1, 2, 3] and world.log.kept == [""]


async def test_a_fenced_writer_stops(world: LogWriterWorld) -> None:
    await world.write()
    world.store()
    world.log.is_fenced = True
    assert not await world.write()
    assert world.seqs() == [] and not world.writer.has_written_all


async def test_a_lost_log_is_written_again_from_a_snapshot(world: LogWriterWorld) -> None:
    world.store()
    await world.write()
    world.log.entries, world.log.parts = {}, []
    world.store()
    await world.write()
    assert world.rank.journal.epoch == 6 and world.updates() == [EXACT]
    (part,) = map(decode, world.log.parts)
    assert part.epoch == 6 and sum(len(run.blocks) for run in part.changes) == 2  # type: ignore[union-attr]
    world.store()
    await world.write()
    assert world.seqs() == [0] and world.log.kept == ["", ""]


async def test_the_journal_is_the_write_queue_up_to_its_bound() -> None:
    world = LogWriterWorld(max_bytes=500)
    await world.write()
    world.log.is_away = True
    world.store(3)
    with pytest.raises(ConnectionError):
        await world.write()
    world.log.is_away = False
    world.store()
    await world.write()
    assert world.seqs() == [0, 1, 2, 3] and world.log.kept == [""]
    world.store(50)  # more than the journal keeps
    await world.write()
    assert world.log.kept == ["", ""] and world.rank.journal.epoch == 6


async def test_another_epoch_begins_with_its_snapshot(world: LogWriterWorld) -> None:
    await world.write()
    world.store()
    world.inventory.reset()
    world.rank.journal.begin(9)
    await world.write()
    assert world.log.kept == ["", ""] and world.rank.journal.epoch == 9 and world.seqs() == []


async def test_a_long_log_is_cut_behind_the_last_snapshot(
    world: LogWriterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MIN_LOG_BYTES", 100)
    await world.write()
    for _ in range(8):
        world.store(4)
        await world.write()
    assert len(world.log.kept) > 1 and all(world.log.kept[1:])
    assert world.log.kept[1] == "5-0" and world.rank.journal.epoch == 5
    assert world.seqs() == list(range(32))  # no duplicates; trimming is the server's part


async def test_a_writer_resumes_behind_another(world: LogWriterWorld) -> None:
    world.store(2)
    await world.write()
    successor = LogWriter(world.log, world.rank, world.renumber)
    successor.resume(world.log.last, 10, 10)
    world.store()
    await successor.write(LEASE)
    assert world.seqs() == [2] and world.log.kept == [""]


async def test_foreign_entries_are_overwritten(world: LogWriterWorld) -> None:
    world.store(2)
    await world.write()
    assert world.writer.last == world.log.last
    world.log.entries["5-9"] = b"nonsense"
    world.writer.rewrite()
    assert not world.writer.has_written_all
    await world.write()
    assert world.updates() == [EXACT] and world.log.kept == ["", ""] and world.writer.last == world.log.last


async def test_the_last_entry_is_unknown_after_an_unanswered_write(world: LogWriterWorld) -> None:
    await world.write()
    world.store()
    world.log.is_answer_lost = True
    with pytest.raises(TimeoutError):
        await world.write()
    assert world.writer.last is None
    await world.write()
    assert world.writer.last == world.log.last
