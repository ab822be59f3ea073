"""Contract of all index backends: a backend's test subclasses `IndexContract` and makes an empty index."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash, hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    KvEvent,
    RunStored,
    UnknownEvent,
)
from gateway.core.worker import WorkerId
from gateway.index.base import Index

A, B, C = WorkerId("a:1"), WorkerId("b:1"), WorkerId("c:1")
ROOT = root_hash("m")
SIZE = 4


def stored(
    ids: Sequence[int], names: Sequence[EngineHash], parent: EngineHash | None = None, **fields: object
) -> BlocksStored:
    return BlocksStored(names, parent, tokens_of(ids), SIZE, **fields)  # type: ignore[arg-type]


WINDOW: dict[str, Any] = {"group_idx": 1, "spec_kind": "sliding_window", "window": 9}


def copied(names: Sequence[EngineHash], medium: str, group_idx: int = 0) -> BlocksStored:
    """The event of an offload tier, which has neither tokens nor a parent."""
    return BlocksStored(names, None, tokens_of([]), 0, None, medium, group_idx)


def prompt(ids: Sequence[int], adapter: str | None = None, salt: str | None = None) -> list[BlockHash]:
    return hash_blocks(tokens_of(ids), SIZE, ROOT, prompt_extra_keys(adapter, salt, len(ids) // SIZE))


def exclusive(index: Index, step: int = 2) -> dict[WorkerId, int]:
    """Blocks that one worker alone holds, counted a few runs at a time."""
    found: Counter[WorkerId] = Counter()
    first, is_more = 0, True
    while is_more:
        some, is_more = index.exclusive(first, step)
        found.update(some)
        first += step
    return {worker: num for worker, num in found.items() if num}


class IndexContract:
    sees_all = True
    """False for an index with blocks that it does not see: it counts none as a worker's alone."""

    def make(self) -> Index:
        raise NotImplementedError

    def index(self, *workers: WorkerId) -> Index:
        index = self.make()
        for worker in workers or (A, B):
            index.add_worker(worker, ROOT, SIZE)
        return index

    def test_new_worker_has_no_blocks(self) -> None:
        index = self.index()
        assert dict(index.overlap(prompt(range(8)))) == {}
        assert dict(index.overlap([])) == {}
        assert index.num_blocks(A) == 0

    def test_overlap_counts_leading_blocks_per_worker(self) -> None:
        index = self.index()
        index.apply(A, stored(range(12), [1, 2, 3]))
        index.apply(B, stored(range(4), [1]))
        assert dict(index.overlap(prompt(range(16)))) == {A: 3, B: 1}
        assert dict(index.overlap(prompt([*range(4), 99, *range(5, 12)]))) == {A: 1, B: 1}
        assert dict(index.overlap(prompt([99, *range(1, 12)]))) == {}

    def test_run_continues_from_its_parent(self) -> None:
        index = self.index()
        index.apply(A, stored(range(8), [1, 2]))
        index.apply(A, stored(range(8, 16), [3, 4], parent=2))
        assert dict(index.overlap(prompt(range(16)))) == {A: 4}

    def test_branches_share_their_prefix(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1]))
        index.apply(A, stored(range(10, 14), [2], parent=1))
        index.apply(A, stored(range(20, 24), [3], parent=1))
        for tail in (10, 20):
            assert dict(index.overlap(prompt([*range(4), *range(tail, tail + 4)]))) == {A: 2}

    def test_engine_hashes_are_per_worker_and_may_be_bytes(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [b"\x01" * 32]))
        index.apply(B, stored(range(50, 54), [b"\x01" * 32]))
        index.apply(A, stored(range(4, 8), [2**64 - 1], parent=b"\x01" * 32))
        index.apply(B, BlocksRemoved([b"\x01" * 32]))
        assert dict(index.overlap(prompt(range(8)))) == {A: 2}
        assert index.num_blocks(B) == 0

    def test_tail_first_removal_shortens_the_overlap(self) -> None:
        index = self.index()
        index.apply(A, stored(range(12), [1, 2, 3]))
        index.apply(A, BlocksRemoved([3]))
        index.apply(A, BlocksRemoved([2]))
        assert dict(index.overlap(prompt(range(12)))) == {A: 1}

    def test_missing_block_ends_the_overlap_until_it_is_stored(self) -> None:
        index = self.index()
        index.apply(A, stored(range(12), [1, 2, 3]))
        index.apply(A, BlocksRemoved([2]))
        assert dict(index.overlap(prompt(range(12)))) == {A: 1}
        index.apply(A, stored(range(4, 8), [2], parent=1))
        assert dict(index.overlap(prompt(range(12)))) == {A: 3}

    def test_block_stored_twice_stays_until_it_is_removed_twice(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1]))
        index.apply(A, stored(range(4), [1]))
        index.apply(A, BlocksRemoved([1]))
        assert dict(index.overlap(prompt(range(4)))) == {A: 1}
        index.apply(A, BlocksRemoved([1]))
        assert dict(index.overlap(prompt(range(4)))) == {}
        index.apply(A, BlocksRemoved([1]))
        assert index.applied(A).num_unknown_removals == 1

    def test_block_under_two_engine_hashes_stays_until_both_are_removed(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1]))
        index.apply(A, stored(range(4), [9]))
        index.apply(A, BlocksRemoved([1]))
        assert dict(index.overlap(prompt(range(4)))) == {A: 1}
        index.apply(A, BlocksRemoved([9]))
        assert (dict(index.overlap(prompt(range(4)))), index.num_blocks(A)) == ({}, 0)

    def test_block_in_two_media_stays_until_both_remove_it(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1]))
        index.apply(A, stored(range(4), [1], medium="CPU"))
        index.apply(A, BlocksRemoved([1]))
        assert dict(index.overlap(prompt(range(4)))) == {A: 1}
        index.apply(A, BlocksRemoved([1], medium="CPU"))
        assert dict(index.overlap(prompt(range(4)))) == {}

    def test_clear_spares_offload_tiers(self) -> None:
        index = self.index()
        index.apply(A, stored(range(8), [1, 2]))
        index.apply(A, stored(range(4), [1], medium="CPU"))
        index.apply(A, BlocksCleared())
        assert dict(index.overlap(prompt(range(8)))) == {A: 1}
        assert index.num_blocks(A) == 1

    def test_offloaded_block_is_identified_by_its_engine_hash(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1]))
        index.apply(A, BlocksStored([1], None, tokens_of([]), 0, medium="CPU"))
        index.apply(A, BlocksRemoved([1]))
        assert dict(index.overlap(prompt(range(4)))) == {A: 1}

    def test_offloaded_block_is_identified_after_its_removal_from_the_gpu(self) -> None:
        """An offload job ends after its block was evicted, so its event follows the removal."""
        index, run = self.index(), prompt(range(16))
        index.apply(A, stored(range(16), [1, 2, 3, 4]))
        index.apply(A, copied([1], "CPU"))
        index.apply(A, BlocksRemoved([3, 2]))
        index.apply(A, copied([2, 3], "CPU"))
        assert index.media(run) == {A: {"GPU": 2, "CPU": 3}}
        index.apply(A, BlocksRemoved([3], medium="CPU"))
        index.apply(A, BlocksRemoved([2], medium="CPU"))
        assert (dict(index.overlap(run)), index.num_blocks(A)) == ({A: 1}, 2)
        index.apply(A, stored(range(8, 12), [3], parent=2, medium="DISK"))
        index.apply(A, copied([2], "DISK"))
        assert (dict(index.overlap(run)), index.applied(A).num_orphans) == ({A: 4}, 0)
        index.reset_worker(A)
        index.apply(A, copied([1], "CPU"))
        assert (index.applied(A).num_orphans, index.applied(A).unplaced) == (0, {"CPU": 1})

    def test_blocks_of_a_shared_tier_count_for_each_worker_that_published_about_it(self) -> None:
        index, run = self.index(A, B, C), prompt(range(16))
        index.apply(A, stored(range(16), [1, 2, 3, 4]))
        index.apply(B, stored(range(100, 104), [9]))
        index.apply(A, copied([1, 2], "STORAGE@"))
        assert index.media(run) == {A: {"GPU": 4, "STORAGE@": 2}}
        index.apply(B, copied([9], "STORAGE@"))
        assert index.media(run) == {A: {"GPU": 4, "STORAGE@": 2}, B: {"STORAGE@": 2}}
        index.apply(A, copied([3], "STORAGE@"))
        index.apply(B, stored(range(4), [1], medium="STORAGE@"))
        index.apply(C, stored(range(4), [1], medium="STORAGE@other"))
        assert dict(index.overlap(run)) == {A: 4, B: 3, C: 1}
        index.apply(B, BlocksRemoved([1], medium="STORAGE@"))
        assert dict(index.overlap(run)) == {A: 4, C: 1}
        assert index.media(run)[A] == {"GPU": 4, "STORAGE@": 2}
        index.apply(A, BlocksCleared())
        assert (index.num_blocks(A), index.num_blocks(B)) == (3, 3)
        index.reset_worker(A)
        index.apply(B, BlocksRemoved([9], medium="STORAGE@"))
        assert (index.num_blocks(A), index.num_blocks(B), index.applied(A).num_unknown_removals) == (0, 3, 0)

    def test_other_kv_groups_do_not_change_full_attention(self) -> None:
        index, run = self.index(), prompt(range(8))
        index.apply(A, stored(range(4), [1]))
        index.apply(A, stored(range(8), [1, 2], group_idx=1, spec_kind="chunked_local_attention"))
        index.apply(A, BlocksRemoved([1], group_idx=1))
        assert (dict(index.overlap(run)), index.num_blocks(A), index.holds(A, run[:1])) == ({A: 1}, 1, True)

    def test_sliding_window_bounds_the_overlap(self) -> None:
        """A window of 9 tokens needs the two blocks of 4 before the end of a hit."""
        index, run = self.index(), prompt(range(24))
        index.apply(A, stored(range(24), [1, 2, 3, 4, 5, 6], **WINDOW))
        index.apply(A, stored(range(24), [1, 2, 3, 4, 5, 6]))
        index.apply(B, stored(range(24), [1, 2, 3, 4, 5, 6]))
        assert dict(index.overlap(run)) == {A: 6, B: 6}
        index.apply(A, BlocksRemoved([1, 2], group_idx=1))
        assert [index.overlap(run, most)[A] for most in (6, 5, 4)] == [6, 5, 4]
        assert A not in index.overlap(run, 3)
        index.apply(A, BlocksRemoved([5], group_idx=1))
        assert dict(index.overlap(run)) == {A: 4, B: 6}
        index.apply(A, BlocksRemoved([2]))
        assert (dict(index.overlap(run)), index.holds(B, run), index.holds(A, run[:1])) == (
            {B: 6},
            True,
            True,
        )
        index.apply(A, copied([1], "CPU", group_idx=1))
        assert dict(index.overlap(run)) == {A: 1, B: 6}
        index.apply(A, BlocksCleared())
        assert dict(index.overlap(run)) == {B: 6}

    def test_masked_blocks_are_identified_by_their_engine_hashes(self) -> None:
        """A store of the last two blocks has the tokens of all four; its hashes identify the two."""
        index, run = self.index(), prompt(range(16))
        index.apply(A, stored(range(16), [1, 2, 3, 4]))
        index.apply(A, stored(range(16), [3, 4], **WINDOW))
        assert (dict(index.overlap(run)), index.overlap(run, 3).get(A)) == ({A: 4}, None)
        assert index.applied(A).num_mismatched == 0

    def test_mamba_overlap_ends_at_a_block_with_state(self) -> None:
        index, run = self.index(), prompt(range(16))
        index.apply(A, stored(range(16), [1, 2, 3, 4]))
        index.apply(A, stored(range(16), [2], group_idx=1, spec_kind="mamba"))
        assert dict(index.overlap(run)) == {A: 2}
        index.apply(A, stored([], [4], group_idx=1))
        assert dict(index.overlap(run)) == {A: 4}

    def test_state_is_looked_for_before_the_block_that_speculation_drops(self) -> None:
        """The result counts that block: without it, the hit ends at a state."""
        index, run = self.index(), prompt(range(20))
        index.apply(A, stored(range(20), [1, 2, 3, 4, 5]))
        index.apply(A, stored(range(16), [2, 4], group_idx=1, spec_kind="mamba"))
        assert index.overlap(run, drops_last=True) == {A: 5}
        index.apply(A, BlocksRemoved([5]))
        assert index.overlap(run) == {A: 4}
        assert index.overlap(run, drops_last=True) == {A: 3}
        index.apply(A, BlocksRemoved([2], group_idx=1))
        assert A not in index.overlap(run, drops_last=True)

    def test_window_needs_a_block_more_where_speculation_drops_one(self) -> None:
        index, run = self.index(), prompt(range(24))
        index.apply(A, stored(range(24), [1, 2, 3, 4, 5, 6]))
        index.apply(A, stored(range(24), [1, 2, 3, 4, 5, 6], **WINDOW))
        assert [index.overlap(run, most, drops_last=True)[A] for most in (6, 5, 3)] == [6, 6, 4]
        index.apply(A, BlocksRemoved([4], group_idx=1))
        assert index.overlap(run) == {A: 6}
        assert index.overlap(run, drops_last=True) == {A: 3}

    def test_overlap_ends_at_borders_of_longer_blocks_of_another_group(self) -> None:
        """Engine hashes of longer blocks are those of their last part, and hits end at their borders."""
        index, run = self.index(), prompt(range(20))
        index.apply(A, stored(range(20), [1, 2, 3, 4, 5]))
        longer = BlocksStored([2, 4], None, tokens_of(range(16)), 8, None, "GPU", 1, "sliding_window", 9)
        index.apply(A, longer)
        assert dict(index.overlap(run)) == {A: 4}
        assert index.overlap(run, 3) == {A: 2}

    def test_overlap_needs_a_block_in_each_group_of_full_attention(self) -> None:
        index, run = self.index(), prompt(range(12))
        index.apply(A, stored(range(12), [1, 2, 3], spec_kind="full_attention"))
        index.apply(A, stored(range(12), [1, 2, 3], group_idx=1, spec_kind="full_attention"))
        assert dict(index.overlap(run)) == {A: 3}
        index.apply(A, BlocksRemoved([3], group_idx=1))
        assert (dict(index.overlap(run)), index.num_blocks(A)) == ({A: 2}, 3)

    def test_offloaded_block_belongs_to_the_group_of_its_number(self) -> None:
        """Offload tiers report no kind of group: here group 0 is the window's, group 1 full attention."""
        index, run = self.index(), prompt(range(8))
        full: dict[str, Any] = {"group_idx": 1, "spec_kind": "full_attention"}
        index.apply(A, stored(range(8), [1, 2], spec_kind="sliding_window", window=5))
        index.apply(A, stored(range(8), [1, 2], **full))
        index.apply(A, copied([1], "CPU"))
        assert index.media(run)[A] == {"GPU": 2}
        index.apply(A, copied([1, 2], "CPU", group_idx=1))
        assert index.media(run)[A] == {"GPU": 2, "CPU": 2}

    def test_partial_block_is_ignored_without_a_mismatch(self) -> None:
        index, run = self.index(), prompt(range(8))
        index.apply(A, stored(range(4), [1]))
        index.apply(A, BlocksStored([7], 1, tokens_of([4, 5]), 2))
        applied = index.applied(A)
        assert (applied.num_mismatched, applied.num_orphans, index.num_blocks(A)) == (0, 0, 1)
        index.apply(A, BlocksRemoved([7]))
        index.apply(A, stored(range(4, 8), [2], parent=1))
        assert dict(index.overlap(run)) == {A: 2}

    def test_clear_and_reset_remove_blocks_that_were_reported_twice(self) -> None:
        """A prefix reported again as a run from the root looks like a second copy of each block.

        Clients may not ask for such reports (`requests/parsing.py`); copies end with a clear or a reset.
        """
        index = self.index()
        for worker in (A, B):
            for _ in range(2):
                index.apply(worker, stored(range(8), [1, 2]))
        index.apply(A, BlocksCleared())
        index.reset_worker(B)
        for worker in (A, B):
            index.apply(worker, stored(range(8), [1, 2]))
            index.apply(worker, BlocksRemoved([1, 2]))
        assert (dict(index.overlap(prompt(range(8)))), index.applied(A).num_unknown_removals) == ({}, 0)

    def test_images_are_part_of_a_block_hash(self) -> None:
        index, ids = self.index(), tokens_of(range(8))
        index.apply(A, stored(range(8), [1, 2], extra_keys=[None, [["image-1", 2]]]))
        cases: list[tuple[Any, int]] = [
            ([None, [["image-1", 2]]], 2),
            ([None, [["image-2", 2]]], 1),
            (None, 1),
        ]
        for keys, depth in cases:
            assert index.overlap(hash_blocks(ids, SIZE, ROOT, keys))[A] == depth

    @pytest.mark.parametrize(
        ("group_idx", "spec_kind", "is_cached"),
        [
            (0, None, True),
            (0, "full_attention", True),
            (2, "full_attention", True),
            (0, "mla_attention", True),
            (0, "sink_full_attention", True),
            (0, "unknown", False),
            (1, None, False),
            (0, "sliding_window", False),
        ],
    )
    def test_blocks_count_for_groups_of_full_attention_only(
        self, group_idx: int, spec_kind: str | None, is_cached: bool
    ) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1], group_idx=group_idx, spec_kind=spec_kind))
        assert index.num_blocks(A) == is_cached

    def test_media_of_the_overlap_are_counted(self) -> None:
        index = self.index()
        index.apply(A, stored(range(12), [1, 2, 3]))
        index.apply(A, stored(range(12), [1, 2, 3], medium="CPU"))
        index.apply(A, BlocksRemoved([3]))
        index.apply(A, BlocksRemoved([1], medium="CPU"))
        index.apply(B, stored(range(8), [1, 2]))
        run = prompt(range(20))
        assert index.media(run) == {A: {"GPU": 2, "CPU": 2}, B: {"GPU": 2}}
        assert index.media(run[:1]) == {A: {"GPU": 1}, B: {"GPU": 1}}
        assert index.offloaded(run, index.overlap(run)) == {A: {("CPU",): 1}}
        index.apply(A, copied([2, 3], "DISK"))
        index.apply(A, BlocksRemoved([2]))
        assert index.offloaded(run, index.overlap(run)) == {A: {("CPU", "DISK"): 2}}
        assert index.offloaded(run, {A: 2, B: 2}) == {A: {("CPU", "DISK"): 1}}
        index.apply(A, BlocksRemoved([2, 3], medium="DISK"))
        index.apply(A, BlocksCleared())
        assert (index.media(run), index.num_blocks(A)) == ({B: {"GPU": 2}}, 2)
        index.apply(A, stored(range(4), [1]))
        assert index.media(run)[A] == {"GPU": 1, "CPU": 2}

    def test_block_in_a_slower_medium_counts_for_the_overlap(self) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1], medium="CPU"))
        index.apply(A, stored(range(4, 8), [2], parent=1))
        assert index.media(prompt(range(8))) == {A: {"CPU": 1, "GPU": 1}}
        index.apply(A, BlocksRemoved([1]))
        assert index.applied(A).num_unknown_removals == 1
        index.apply(A, BlocksRemoved([1], medium="CPU"))
        assert dict(index.overlap(prompt(range(8)))) == {}
        assert list(index.blocks(A)) == prompt(range(8))[1:]

    def test_holds_needs_every_block(self) -> None:
        index = self.index()
        index.apply(A, stored(range(12), [1, 2, 3]))
        run = prompt(range(16))
        assert [index.holds(A, run[:i]) for i in (1, 3, 4)] == [True, True, False]
        assert not index.holds(B, run[:1])
        assert index.holds(B, [])
        assert not index.holds(WorkerId("gone"), run)
        index.apply(A, BlocksRemoved([1]))
        assert not index.holds(A, run[:3])

    def test_blocks_are_listed_once_each(self) -> None:
        index = self.index()
        index.apply(A, stored(range(12), [1, 2, 3]))
        index.apply(A, stored(range(12), [1, 9, 3], medium="CPU"))
        index.apply(A, BlocksRemoved([2]))
        assert sorted(index.blocks(A)) == sorted(prompt(range(12)))
        assert list(index.blocks(B)) == []

    def test_blocks_of_one_worker_alone_are_counted(self) -> None:
        index = self.index(A, B, C)
        for worker, num in ((A, 5), (B, 3), (C, 3)):
            index.apply(worker, stored(range(num * SIZE), list(range(num))))
        index.apply(C, stored(range(50, 50 + 2 * SIZE), [8, 9]))
        index.apply(C, BlocksRemoved([2]))
        if self.sees_all:
            assert exclusive(index) == {A: 2, C: 2}
            index.drop_worker(A)
            assert exclusive(index) == {B: 1, C: 2}
            index.apply(B, stored(range(50, 50 + SIZE), [8]))
            assert exclusive(index) == {B: 1, C: 1}
        else:
            assert exclusive(index) == {}

    def test_workers_may_have_different_block_sizes(self) -> None:
        index = self.index()
        index.add_worker(B, ROOT, 1)
        index.apply(A, stored(range(8), [1, 2]))
        index.apply(B, BlocksStored(list(range(8)), None, tokens_of(range(8)), 1))
        assert dict(index.overlap(prompt(range(8)))) == {A: 2}
        assert dict(index.overlap(hash_blocks(tokens_of(range(9)), 1, ROOT))) == {B: 8}

    def test_dropped_and_reset_workers_have_no_overlap_before_the_sweep(self) -> None:
        index = self.index()
        index.apply(A, stored(range(8), [1, 2]))
        index.apply(B, stored(range(8), [1, 2]))
        index.drop_worker(A)
        index.reset_worker(B)
        assert dict(index.overlap(prompt(range(8)))) == {}
        index.add_worker(A, ROOT, SIZE)
        index.apply(A, stored(range(4), [1]))
        while index.sweep():
            pass
        assert dict(index.overlap(prompt(range(8)))) == {A: 1}
        index.apply(B, stored(range(4), [7]))
        index.apply(B, BlocksRemoved([2]))
        assert index.applied(B).num_unknown_removals == 1
        assert dict(index.overlap(prompt(range(8)))) == {A: 1, B: 1}

    def test_adapters_and_salts_share_no_blocks(self) -> None:
        index = self.index()
        index.apply(A, stored(range(8), [1, 2], extra_keys=[["lora"], ["lora"]]))
        index.apply(B, stored(range(8), [1, 2], extra_keys=[["salt"], None]))
        ids = range(8)
        assert dict(index.overlap(prompt(ids))) == {}
        assert dict(index.overlap(prompt(ids, adapter="lora"))) == {A: 2}
        assert dict(index.overlap(prompt(ids, salt="salt"))) == {B: 2}

    def test_hashed_run_is_stored_like_its_tokens(self) -> None:
        index, run = self.index(), prompt(range(16))
        index.apply(A, RunStored(run[:2], [1, 2], None, ROOT))
        index.apply(A, RunStored(run[2:], [3, 4], 2, run[1]))
        index.apply(A, RunStored(run[:1], [1], None, ROOT, "CPU"))
        index.apply(B, stored(range(16), [1, 2, 3, 4]))
        assert dict(index.overlap(run)) == {A: 4, B: 4}
        assert index.media(run)[A] == {"GPU": 4, "CPU": 1}
        index.apply(A, BlocksRemoved([3]))
        index.apply(A, stored(range(8, 12), [3], parent=2))
        assert dict(index.overlap(run)) == {A: 4, B: 4}
        index.apply(A, BlocksRemoved([2]))
        assert (index.overlap(run)[A], index.num_blocks(A)) == (1, 3)

    def test_hashed_run_with_another_parent_is_an_orphan(self) -> None:
        index, run = self.index(), prompt(range(16))
        index.apply(A, RunStored(run[:2], [1, 2], None, ROOT))
        index.apply(A, RunStored(run[2:], [3, 4], 1, run[1]))
        index.apply(A, RunStored(run[2:], [3, 4], None, run[1]))
        index.apply(A, RunStored(run[2:], [3, 4], 9, run[1]))
        index.apply(A, RunStored(run[:2], [7, 8], 9, ROOT))
        index.apply(A, RunStored(run[2:], [3], 2, run[1]))
        assert (index.applied(A).num_orphans, index.applied(A).num_mismatched) == (8, 1)
        assert (index.num_blocks(A), dict(index.overlap(run))) == (2, {A: 2})

    @pytest.mark.parametrize(
        "event",
        [
            stored(range(4), [5], parent=77),
            stored(range(7), [5, 6]),
            BlocksStored([5], None, tokens_of(range(8)), 8),
            BlocksStored([5], None, tokens_of([]), 0, medium="CPU"),
        ],
    )
    def test_unusable_stores_are_counted_and_change_nothing(self, event: BlocksStored) -> None:
        index = self.index()
        index.apply(A, event)
        applied = index.applied(A)
        assert applied.num_orphans + applied.num_mismatched + sum(applied.unplaced.values()) == 1
        assert index.num_blocks(A) == 0

    @pytest.mark.parametrize(
        "event",
        [
            BlocksStored([5, 6], 77, tokens_of(range(8)), SIZE, medium="CPU"),
            BlocksStored([5, 6], None, tokens_of(range(7)), SIZE, medium="CPU"),
            BlocksStored([5, 6], None, tokens_of(range(16)), 8, medium="CPU"),
            copied([5, 6], "CPU"),
            RunStored(prompt(range(8)), [5, 6], 77, ROOT, "CPU"),
        ],
        ids=["unknown parent", "tokens missing", "another block size", "unknown names", "run"],
    )
    def test_unusable_stores_of_another_medium_are_counted_there(self, event: BlocksStored) -> None:
        index = self.index()
        index.apply(A, stored(range(4), [1]))
        index.apply(A, event)
        applied = index.applied(A)
        assert (applied.unplaced, applied.num_orphans, applied.num_mismatched) == ({"CPU": 2}, 0, 0)
        assert dict(index.overlap(prompt(range(4)))) == {A: 1}

    def test_unreadable_events_of_another_medium_are_counted_there(self) -> None:
        index = self.index()
        index.apply(A, UnknownEvent("BlockStored", "CPU"))
        applied = index.applied(A)
        assert (applied.unplaced, applied.num_unknown_events) == ({"CPU": 1}, 0)

    def test_unknown_event_is_counted(self) -> None:
        index = self.index()
        index.apply(A, UnknownEvent("Novelty"))
        assert index.applied(A).num_unknown_events == 1

    def test_reset_forgets_blocks_and_keeps_the_worker(self) -> None:
        index = self.index()
        index.apply(A, stored(range(8), [1, 2]))
        index.apply(B, stored(range(8), [1, 2]))
        index.reset_worker(A)
        assert dict(index.overlap(prompt(range(8)))) == {B: 2}
        index.apply(A, stored(range(4), [1]))
        assert dict(index.overlap(prompt(range(8)))) == {A: 1, B: 2}

    def test_dropped_worker_may_be_added_again(self) -> None:
        index = self.index()
        index.apply(A, stored(range(8), [1, 2]))
        index.drop_worker(A)
        index.drop_worker(A)
        assert dict(index.overlap(prompt(range(8)))) == {}
        with pytest.raises(KeyError):
            index.apply(A, stored(range(4), [1]))
        index.add_worker(A, ROOT, SIZE)
        assert index.num_blocks(A) == 0

    def test_overlap_is_counted_for_a_hundred_workers(self) -> None:
        names = [WorkerId(f"w{i}:1") for i in range(100)]
        index = self.index(*names)
        for i, name in enumerate(names):
            index.apply(name, stored(range((i % 5 + 1) * 4), list(range(i % 5 + 1))))
        assert dict(index.overlap(prompt(range(40)))) == {name: i % 5 + 1 for i, name in enumerate(names)}

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_overlap_equals_plain_counters(self, data: st.DataObject) -> None:
        """Random stores, removals and clears on a small tree of prompts, against plain counters."""
        index = self.index()
        truth: dict[WorkerId, Counter[tuple[int, ...]]] = {A: Counter(), B: Counter()}
        paths = [tuple(data.draw(st.integers(0, 1), label="branch") for _ in range(4)) for _ in range(3)]
        for _ in range(data.draw(st.integers(0, 40))):
            worker = data.draw(st.sampled_from([A, B]))
            path = data.draw(st.sampled_from(paths))[: data.draw(st.integers(1, 4))]
            action = data.draw(st.sampled_from(["store", "store", "remove", "clear"]))
            if action == "clear":
                truth[worker].clear()
                index.apply(worker, BlocksCleared())
            elif action == "remove" and truth[worker][path]:
                truth[worker][path] -= 1
                index.apply(worker, BlocksRemoved([_engine_hash(path)]))
            elif action == "store" and (len(path) == 1 or truth[worker][path[:-1]]):
                truth[worker][path] += 1
                index.apply(worker, _block(path))
        for path in paths:
            hashes = prompt([t for bit in path for t in [bit] * SIZE])
            expected = {w: depth for w in (A, B) if (depth := _depth(truth[w], path))}
            assert dict(index.overlap(hashes)) == expected
        for worker in (A, B):
            assert index.num_blocks(worker) == sum(1 for count in truth[worker].values() if count > 0)


def _engine_hash(path: tuple[int, ...]) -> int:
    return int("1" + "".join(map(str, path)))


def _block(path: tuple[int, ...]) -> KvEvent:
    parent = _engine_hash(path[:-1]) if len(path) > 1 else None
    return stored([path[-1]] * SIZE, [_engine_hash(path)], parent)


def _depth(cached: Counter[tuple[int, ...]], path: tuple[int, ...]) -> int:
    depth = 0
    while depth < len(path) and cached[path[: depth + 1]] > 0:
        depth += 1
    return depth
