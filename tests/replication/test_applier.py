"""Changes that others tell of a worker, in the index; what cannot be placed is said, not passed over."""

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
    """The worker has block 1, and was sent something a moment ago."""
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


def test_a_reset_forgets_the_worker_and_what_is_assumed_of_it(known: Known) -> None:
    applying(known).apply([Reset("a snapshot follows"), stored(5), stored(6, 5)])
    assert (known.num_blocks(W), known.assumed.num_kept(W)) == (2, 0)
    applying(known).reset()
    assert (known.num_blocks(W), known.num_blocks("w:2")) == (0, 1)


def test_what_was_proven_is_taken_back_and_nothing_else(known: Known) -> None:
    mine, run = applying(known), [BlockHash(block) for block in (11, 12, 13)]
    root = root_hash("root")
    proven = RunStored(run, run, None, root, *LINKS)
    told = RunStored(run[:1], [21], None, root)
    mine.apply([proven, told, BlocksRemoved(run[2:], *LINKS), stored(3)])
    assert known.num_blocks(W) == 4
    mine.withdraw_proofs()
    assert sorted(known.index.blocks(W)) == sorted([run[0], *(known.index.find(W, name) for name in (1, 3))])  # type: ignore[type-var]
    assert known.index.applied(W).num_unknown_removals == 0


@pytest.mark.parametrize("end", [Reset("a snapshot follows"), BlocksCleared()])
def test_what_is_forgotten_need_not_be_taken_back(known: Known, end: Change) -> None:
    mine, run = applying(known), [BlockHash(11)]
    mine.apply([RunStored(run, run, None, root_hash("root"), *LINKS), end])
    mine.withdraw_proofs()
    assert (known.num_blocks(W), known.index.applied(W).num_unknown_removals) == (0, 0)


@pytest.mark.parametrize("misplaced", [stored(5, 4), stored(5, 1, block_size=BLOCK_SIZE + 1)])
def test_what_cannot_be_placed_is_said_when_all_is_applied(known: Known, misplaced: BlocksStored) -> None:
    with pytest.raises(LogError, match="unknown parent blocks, or another block size"):
        applying(known).apply([misplaced, stored(2, 1)])
    assert known.num_blocks(W) == 2


def test_what_was_misplaced_before_is_not_said_again(known: Known) -> None:
    with pytest.raises(LogError):
        applying(known).apply([stored(5, 4)])
    applying(known).apply([stored(2, 1)])
    assert known.num_blocks(W) == 2


def test_more_than_is_kept_of_a_worker_is_forgotten_with_the_reason(known: Known) -> None:
    mine = Applier(W, known.index, known.assumed, BlockLimits(on_gpu=50, offloaded=10, declared=9))
    mine.apply([stored(name) for name in range(2, 60)])
    assert known.num_blocks(W) == 59
    with pytest.raises(LimitExceeded, match="without removing them, beyond 100; it declares 9 on its GPU"):
        mine.apply([stored(name) for name in range(60, 120)])
    assert (known.num_blocks(W), known.assumed.num_kept(W), known.num_blocks("w:2")) == (0, 0, 1)


def test_what_is_said_to_be_proven_counts_too(known: Known) -> None:
    mine = Applier(W, known.index, known.assumed, BlockLimits(on_gpu=50, offloaded=10))
    run = [BlockHash(block) for block in range(1_000, 1_120)]
    with pytest.raises(LimitExceeded):
        mine.apply([RunStored(run, run, None, root_hash("root"), *LINKS)])
