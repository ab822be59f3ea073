"""Events of an engine applied by an agent: batches with positions, epochs, states."""

import pytest

from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.ingest.block_size import SizeEvidence
from gateway.ingest.chunks import PORTION_BLOCKS
from gateway.replication.messages import AgentStatus, LogBatch, SnapshotPart
from tests.support.fakes import BLOCK_SIZE, END, payload, seq_frame
from tests.support.worlds.shelf import ROOT, ShelfWorld, W


def exact(*bodies: bytes) -> ShelfWorld:
    world = ShelfWorld()
    world.replay(*bodies)
    assert [type(update) for update in world.updates()] == [SnapshotPart, AgentStatus]
    assert world.rank.journal.status == AgentStatus(StreamState.EXACT)
    return world


def test_a_batch_of_the_engine_is_a_batch_of_the_log() -> None:
    world = exact(payload(1, 2))
    wakes = world.num_wakes
    world.live(1, payload(3, parent=2, ts=2))
    (batch,) = world.updates()
    assert isinstance(batch, LogBatch) and batch.position is not None
    assert (batch.seq, batch.position.next_seq, batch.position.ts) == (1, 2, 2.0)
    assert batch.position.digest == world.subscription.stream.position.digest
    assert world.num_wakes == wakes + 1
    assert not world.subscription.continue_work()  # no event: no update
    assert (world.updates(), world.num_wakes) == ([], wakes + 1)


def test_a_batch_without_changes_moves_the_position() -> None:
    world = exact(payload(1))
    world.live(1, payload(ts=2))
    (batch,) = world.updates()
    assert (list(batch.changes), batch.position.next_seq) == ([], 2)


def test_a_large_batch_is_split_and_only_its_end_has_a_position() -> None:
    world = exact(payload(1))
    world.live(1, payload(*range(10, 10 + 3 * PORTION_BLOCKS), ts=2))
    while world.subscription.continue_work():
        pass
    *parts, last = world.updates()
    assert len(parts) >= 2 and all(part.position is None for part in parts)
    assert last.position.next_seq == 2


def test_a_gap_is_published_as_catching_up_and_then_exact() -> None:
    world = exact(payload(1))
    world.live(2, payload(3, parent=2, ts=3))
    assert world.updates() == [AgentStatus(StreamState.CATCHING_UP)]
    for seq, body in enumerate((payload(1), payload(2, parent=1, ts=2))):
        world.subscription.replayed([b"", b"kv", seq_frame(seq), body])
    world.subscription.replayed([b"", END, b""])
    assert [type(update) for update in world.updates()] == [LogBatch, LogBatch, AgentStatus]
    assert world.rank.inventory.num_blocks == 3


def test_a_restarted_engine_begins_a_new_epoch() -> None:
    world = exact(payload(1, 2))
    before, world.now = world.rank.journal.epoch, 900  # the clock was set back
    world.subscription.disconnected()
    world.replay()
    world.replay()
    assert world.rank.journal.epoch == before + 1
    updates = world.updates()
    assert isinstance(updates[-2], SnapshotPart) and list(updates[-2].changes) == []
    assert updates[-1] == AgentStatus(StreamState.EXACT)


def test_an_agent_that_missed_events_publishes_it() -> None:
    world = ShelfWorld(can_replay=False)
    world.live(5, payload(1))
    assert world.updates()[-1] == AgentStatus(StreamState.BLIND, "a gap without a replay endpoint")
    assert world.rank.inventory.num_blocks == 1


def test_an_owner_that_is_not_proven_yet_is_published() -> None:
    world = exact(payload(1, 2))
    world.subscription.doubt_owner("why", is_fault=False)
    assert world.updates()[-1] == AgentStatus(StreamState.UNPROVEN, "owner not proven yet: why")


def test_a_dropped_worker_wakes_its_readers_and_gets_no_more_updates() -> None:
    world = exact(payload(1))
    wakes, rank = world.num_wakes, world.rank
    world.store.drop_worker(W)
    assert (rank.is_gone, world.num_wakes, world.store.ranks) == (True, wakes + 1, {})
    assert not world.subscription.continue_work()
    world.store.drop_worker(W)


def test_each_process_of_a_worker_has_its_own_epoch() -> None:
    world = ShelfWorld()
    first = world.rank.journal.epoch
    world.store.add_worker(W, ROOT, BLOCK_SIZE)
    assert world.rank.is_gone
    second = world.store.ranks[W].journal.epoch
    world.now = 5000
    world.store.reset_worker(W)
    assert (first, second, world.store.ranks[W].journal.epoch) == (1000, 1001, 5000)


def test_a_worker_of_unknown_block_size_has_no_rank() -> None:
    world = ShelfWorld()
    world.store.add_worker(WorkerId("other:1"), ROOT, None)
    assert list(world.store.ranks) == [W]
    with pytest.raises(KeyError):
        world.store.reset_worker(WorkerId("other:1"))


def test_a_rank_begins_when_events_show_its_block_size() -> None:
    world = ShelfWorld()
    world.store.add_worker(W, ROOT, None)
    world.subscription._size = SizeEvidence(None, lambda size: world.store.add_worker(W, ROOT, size))
    world.replay()
    world.live(0, payload(clear=True))
    assert W not in world.store.ranks
    world.live(1, payload(1, 2, ts=2))
    assert world.store.ranks[W].inventory.num_blocks == 2
    assert world.store.ranks[W].journal.status == AgentStatus(StreamState.EXACT)
