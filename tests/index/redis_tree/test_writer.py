from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.writer import (
    AT,
    BEHIND,
    RUN_BLOCKS,
    UNPLACED,
    Slot,
    WriteBatch,
    Writer,
    _hold,
    _place,
)

A, B = WorkerId("a:1"), WorkerId("b:1")


def blocks(*numbers: int) -> list[BlockHash]:
    return [BlockHash(number) for number in numbers]


def opened(*holdings: int) -> Writer:
    writer = Writer()
    for holding in holdings:
        writer.begin(holding, A, 1, is_hidden=False)
    for number, slot in enumerate(list(writer.unopened), 100):
        assert writer.opened(slot, number, b"1.0")
    return writer


def planned(writer: Writer) -> WriteBatch:
    batch = writer.plan()
    assert batch
    return batch


def written(writer: Writer) -> None:
    """Answer the planned batch so that each hold is an edge of its own."""
    batch = planned(writer)
    placed = b"".join(_place.pack(hold.blocks[0], 0, len(hold.blocks)) for hold in batch.holds)
    assert writer.done(batch, placed, []) == []


def mode(batch: WriteBatch) -> tuple[int, int, int]:
    """Placement of a batch's first hold: its kind, the head of its edge, the position there."""
    _, _, mode, head, position, _, _ = _hold.unpack_from(batch.packed)
    return mode, head, position


def test_consecutive_blocks_are_one_operation() -> None:
    writer = opened(1)
    writer.hold(1, blocks(1), None)
    writer.hold(1, blocks(2, 3), BlockHash(1))
    writer.hold(1, blocks(4), BlockHash(3))
    assert repr(writer) == "Writer(slots=1, queued=4)"
    batch = planned(writer)
    assert [hold.blocks for hold in batch.holds] == [blocks(1, 2, 3, 4)]
    assert (writer.plan(), writer.num_queued) == (None, 0)


def test_run_does_not_grow_across_a_removal_or_beyond_its_limit() -> None:
    writer = opened(1)
    writer.hold(1, blocks(1, 2), None)
    writer.release(1, BlockHash(1))
    writer.hold(1, blocks(3), BlockHash(2))
    assert [hold.blocks for hold in planned(writer).holds] == [blocks(1, 2)]
    writer = opened(1)
    for number in range(RUN_BLOCKS + 1):
        writer.hold(1, blocks(number), BlockHash(number - 1) if number else None)
    assert [len(hold.blocks) for hold in planned(writer).holds] == [RUN_BLOCKS]


def test_branch_waits_for_the_answer_that_places_its_parent() -> None:
    writer = opened(1)
    writer.hold(1, blocks(1, 2, 3), None)
    writer.hold(1, blocks(8), BlockHash(2))  # a branch
    batch = planned(writer)
    assert [hold.blocks for hold in batch.holds] == [blocks(1, 2, 3)]
    assert mode(batch) == (UNPLACED, 0, 0)
    writer.done(batch, _place.pack(77, 10, 2) + _place.pack(3, 0, 1), [])
    assert mode(planned(writer)) == (BEHIND, 77, 11)


def test_removals_are_packed_by_position_the_last_first() -> None:
    writer = opened(1)
    writer.hold(1, blocks(1, 2, 3), None)
    written(writer)
    for number in (2, 3, 9):
        writer.release(1, BlockHash(number))
    batch = planned(writer)
    assert batch.packed == b"R" + b"\x64\0" + (1).to_bytes(8, "little") + b"\2\0" + bytes([2, 1])
    assert (batch.num_blocks, writer.num_queued) == (2, 0)


def test_block_is_placed_by_another_slot_that_has_it() -> None:
    """A single block of an offload tier: another slot has it, or has the block before it."""
    writer = opened(1, 2)
    writer.hold(1, blocks(1, 2, 3), None)
    written(writer)
    writer.hold(2, blocks(2), BlockHash(1))
    assert mode(planned(writer)) == (AT, 1, 1)
    writer.hold(2, blocks(9), BlockHash(3))
    assert mode(planned(writer)) == (BEHIND, 1, 2)


def test_ended_slot_still_places_blocks() -> None:
    writer = opened(1, 2)
    writer.hold(1, blocks(1, 2, 3), None)
    written(writer)
    writer.hold(2, blocks(2), BlockHash(1))
    slot = writer.slots[0]
    writer.end(1)
    writer.hold(2, blocks(3), BlockHash(2))
    assert writer.unclosed == [slot]
    batch = planned(writer)
    assert mode(batch) == (AT, 1, 1)
    assert [hold.blocks for hold in batch.holds] == [blocks(2, 3)]
    assert writer.plan() is None


def test_slot_unknown_to_the_server_is_lost() -> None:
    writer = opened(1, 2)
    writer.hold(1, blocks(1, 2), None)
    writer.hold(2, blocks(1), None)
    batch = planned(writer)
    assert writer.done(batch, _place.pack(1, 0, 1), [100]) == [writer.slots[0]]
    writer.release(1, BlockHash(1))
    assert writer.plan() is None
    assert writer.slots[1].place(1) == (1, 0)


def test_slot_counts_and_reuses_its_edges() -> None:
    slot = Slot(A, 1, is_hidden=False)
    slot.add(blocks(1, 2), 1, 0)
    slot.add(blocks(3), 3, 0)
    assert (slot.num_edges, slot.place(2), slot.place(3), slot.place(4)) == (2, (1, 1), (3, 0), None)
    assert [slot.pop(1), slot.pop(2), slot.pop(2)] == [(1, 0), (1, 1), None]
    slot.add(blocks(7), 7, 5)
    assert (slot.num_edges, slot.place(7)) == (2, (7, 5))
    assert repr(slot) == "Slot(None, a:1, blocks=2, edges=2)"


def test_restarted_writer_knows_no_slot_numbers() -> None:
    """A new master may have given the numbers to other slots, so old slots are closed by their worker."""
    writer = opened(1, 2)
    writer.hold(1, blocks(1, 2), None)
    fresh = writer.restarted()
    assert (fresh.holdings, fresh.num_queued, fresh.unclosed, fresh.unknown) == ([1, 2], 0, [], {A})
    assert [slot.number for slot in fresh.slots] == [None, None]
    fresh.end(1)
    first, second = fresh.unopened
    assert fresh.opened(first, 7, b"2.0")  # a tree that was created again, too
    assert (fresh.age, fresh.unclosed, fresh.unknown) == (b"2.0", [first], set())
    assert fresh.opened(second, 8, b"2.0")
    fresh.begin(3, A, 1, is_hidden=True)
    assert not fresh.opened(fresh.unopened[0], 1, b"3.0")


def test_unclosed_slot_is_opened_again_after_a_restart() -> None:
    writer = opened(1)
    writer.begin(2, B, 5, is_hidden=False)
    assert writer.opened(writer.unopened[0], 7, b"1.0")
    writer.end(2)
    for _ in range(2):  # the connection may be lost again meanwhile
        writer = writer.restarted()
        assert [(slot.worker, slot.fence, slot.number) for slot in writer.unclosed] == [(B, 5, None)]
        assert writer.unopened == [*writer.slots, *writer.unclosed]
        assert writer.unknown == {A, B}


def test_nothing_is_written_about_a_rejected_worker() -> None:
    """Another gateway leads the worker, under a newer fence."""
    writer = Writer()
    for holding in (1, 2):
        writer.begin(holding, A if holding == 1 else B, 1, is_hidden=False)
        writer.hold(holding, blocks(1, 2), None)
        writer.release(holding, BlockHash(2))
    first, second = writer.unopened
    writer.reject(first)
    assert writer.rejected == {A}
    assert writer.opened(second, 7, b"1.0")
    writer.hold(1, blocks(3), None)
    writer.release(1, BlockHash(1))
    batch = planned(writer)
    assert [hold.slot for hold in batch.holds] == [second]
    writer.done(batch, _place.pack(1, 0, 2), [])
    planned(writer)  # the release
    writer.end(1)
    assert (writer.plan(), writer.num_queued, writer.unclosed) == (None, 0, [])
