"""Changes of a worker applied to the index; a change that cannot be placed is an error, not skipped."""

import pytest

from gateway.core.block_limits import BlockLimits
from gateway.core.blocks import BlockHash, root_hash, tokens_of
from gateway.core.event_stream import Reset
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored, RunStored
from gateway.core.worker import WorkerId
from gateway.index.inventory import LINKS
from gateway.replication.applier import Applier, LimitExceeded
from gateway.replication.follower import Change, LogError
from tests.support.fakes import BLOCK_SIZE, Known

W = WorkerId("w:1")
SENT = [BlockHash(7)]


def stored(name: int, parent: int | None = None, *, block_size: int = BLOCK_SIZE) -> BlocksStored:
    return BlocksStored([name], parent, tokens_of([name] * block_size), block_size)


@pytest.fixture
def known() -> Known:
    """Index with a worker that has block 1 and got a request a moment ago."""
    known = Known(W, "w:2")
    known.index.apply(W, stored(1))
    known.index.apply(WorkerId("w:2"), stored(1))
    known.assumed.pin(W, SENT)
    known.assumed.unpin(W, SENT, 0.0, was_run=True)
    return known


def applying(known: Known) -> Applier:
    return Applier(W, known.index, known.assumed)


def test_changes_are_applied_in_order(known: Known) -> None:
    applying(known).apply([stored(2, 1), stored(3, 2), BlocksRemoved([3])])
    assert (known.num_blocks(W), known.assumed.num_kept(W)) == (2, 1)


def test_a_reset_drops_known_and_assumed_blocks(known: Known) -> None:
    applying(known).apply([Reset("a snapshot follows"), stored(5), stored(6, 5)])
    assert (known.num_blocks(W), known.assumed.num_kept(W)) == (2, 0)
    applying(known).reset()
    assert (known.num_blocks(W), known.num_blocks("w:2")) == (0, 1)


def test_only_proven_blocks_are_withdrawn(known: Known) -> None:
    mine, run = applying(known), [BlockHash(block) for block in (11, 12, 13)]
    root = root_hash("root")
    proven = RunStored(run, run, None, root, *LINKS)
    stored_run = RunStored(run[:1], [21], None, root)
    mine.apply([proven, stored_run, BlocksRemoved(run[2:], *LINKS), stored(3)])
    assert known.num_blocks(W) == 4
    mine.withdraw_proofs()
    assert sorted(known.index.blocks(W)) == sorted([run[0], *(known.index.find(W, name) for name in (1, 3))])  # type: ignore[type-var]
    assert known.index.applied(W).num_unknown_removals == 0


@pytest.mark.parametrize("end", [Reset("a snapshot follows"), BlocksCleared()])
def test_dropped_blocks_need_not_be_withdrawn(known: Known, end: Change) -> None:
    mine, run = applying(known), [BlockHash(11)]
    mine.apply([RunStored(run, run, None, root_hash("root"), *LINKS), end])
    mine.withdraw_proofs()
    assert (known.num_blocks(W), known.index.applied(W).num_unknown_removals) == (0, 0)


@pytest.mark.parametrize("misplaced", [stored(5, 4), stored(5, 1, block_size=BLOCK_SIZE + 1)])
def test_misplaced_blocks_are_an_error_after_all_is_applied(known: Known, misplaced: BlocksStored) -> None:
    with pytest.raises(LogError, match="unknown parent blocks, or another block size"):
        applying(known).apply([misplaced, stored(2, 1)])
    assert known.num_blocks(W) == 2


def test_an_earlier_misplacement_is_reported_once(known: Known) -> None:
    with pytest.raises(LogError):
        applying(known).apply([stored(5, 4)])
    applying(known).apply([stored(2, 1)])
    assert known.num_blocks(W) == 2


def test_blocks_beyond_the_limit_are_dropped_with_the_reason(known: Known) -> None:
    mine = Applier(W, known.index, known.assumed, BlockLimits(on_gpu=50, offloaded=10, declared=9))
    mine.apply([stored(name) for name in range(2, 60)])
    assert known.num_blocks(W) == 59
    with pytest.raises(LimitExceeded, match="without removing them, beyond 100; it declares 9 on its GPU"):
        mine.apply([stored(name) for name in range(60, 120)])
    assert (known.num_blocks(W), known.assumed.num_kept(W), known.num_blocks("w:2")) == (0, 0, 1)


def test_proven_blocks_count_towards_the_limit(known: Known) -> None:
    mine = Applier(W, known.index, known.assumed, BlockLimits(on_gpu=50, offloaded=10))
    run = [BlockHash(block) for block in range(1_000, 1_120)]
    with pytest.raises(LimitExceeded):
        mine.apply([RunStored(run, run, None, root_hash("root"), *LINKS)])
