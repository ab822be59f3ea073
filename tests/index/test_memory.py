"""The packed index: the contract, and a state machine that compares it with the reference index."""

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.blocks import BlockHash, hash_blocks, tokens_of
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index import edges, engine_hashes, memory, reference
from gateway.index.base import Index
from gateway.index.followed_tiers import MAX_GROUPS, MAX_MEDIA
from gateway.index.memory import MemoryIndex
from gateway.index.reference import ReferenceIndex
from tests.index.contract import ROOT, SIZE, A, B, C, IndexContract, prompt, stored
from tests.support.recorded_holdings import RecordedHoldings

SIZES: dict[WorkerId, int | None] = {A: 2, B: 2, C: 1}
PLACES = st.sampled_from(
    [("GPU", 0), ("GPU", 0), ("GPU", 0), ("GPU", 0), ("GPU", 2), ("CPU", 0), ("DISK", 0), ("STORAGE@", 0)]
)
GROUPS = {1: ("sliding_window", 1, 5), 3: ("mamba", 2, None), 4: ("chunked_local_attention", 1, None)}
OTHERS = st.sampled_from([("GPU", 1), ("GPU", 1), ("CPU", 1), ("GPU", 3), ("GPU", 4), ("GPU", 5)])
PATHS = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=12).map(tuple)
WORKERS = st.sampled_from([A, A, B, C])
EXAMPLES = int(os.environ.get("KVGATE_EXAMPLES", "100"))

Path = tuple[int, ...]


class TestMemoryIndex(IndexContract):
    def make(self) -> Index:
        return MemoryIndex()


def offloaded(index: Index, hashes: list[BlockHash]) -> list[object]:
    found = index.offloaded(hashes, index.overlap(hashes))
    return sorted((worker, sorted(media.items())) for worker, media in found.items())


def name(worker: WorkerId, path: Path, variant: int) -> EngineHash:
    """An engine's own hash of a block and all before it: integers at some workers, bytes at others."""
    bits = bytes([1, variant, *path])
    return bits if worker == B else int(bits.hex(), 2)


class Twins(RuleBasedStateMachine):
    """Both indexes get the same random events; small limits fill edges, split tables, interrupt sweeps."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(edges, "MAX_BLOCKS", 4)
        self.patch.setattr(engine_hashes, "AVERAGE", 2)
        self.patch.setattr(memory, "SWEEP_EDGES", 2)
        self.patch.setattr(memory, "MAX_REMOVED", 3)
        self.patch.setattr(reference, "MAX_REMOVED", 3)
        self.oracle, self.packed = ReferenceIndex(), MemoryIndex()
        self.twins: tuple[Index, Index] = self.oracle, self.packed
        self.paths: dict[Path, None] = {}
        for worker in SIZES:
            self.add(worker)

    def teardown(self) -> None:
        """Drop all workers and sweep, and assert that nothing is left."""
        for worker in SIZES:
            self.packed.drop_worker(worker)
        while self.packed.sweep():
            pass
        assert repr(self.packed) == "MemoryIndex(workers=0, blocks=0)"
        self.patch.undo()

    def add(self, worker: WorkerId) -> None:
        for index in self.twins:
            index.add_worker(worker, ROOT, SIZES[worker])

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        for index in self.twins:
            index.apply(worker, event)

    @rule(worker=WORKERS, path=PATHS, at=st.integers(0, 12), place=PLACES, variant=st.sampled_from([0, 0, 1]))
    def store(self, worker: WorkerId, path: Path, at: int, place: tuple[str, int], variant: int) -> None:
        """Store a run behind any block of its path: known, removed or never stored."""
        at %= len(path)
        self.paths[path] = None
        size = SIZES[worker] or 1
        hashes = [name(worker, path[:i], variant) for i in range(at + 1, len(path) + 1)]
        parent = name(worker, path[:at], variant) if at else None
        tokens = tokens_of([token for token in path[at:] for _ in range(size)])
        medium, group = place
        self.apply(worker, BlocksStored(hashes, parent, tokens, size, None, medium, group, "full_attention"))

    @rule(worker=WORKERS, path=PATHS, places=st.lists(PLACES, min_size=2, max_size=2))
    def move(self, worker: WorkerId, path: Path, places: list[tuple[str, int]]) -> None:
        """Store blocks in another medium without tokens, then remove them from the first, tail first."""
        hashes = [name(worker, path[:i], 0) for i in range(1, len(path) + 1)]
        (left, group), (entered, other) = places
        event = BlocksStored(hashes, None, tokens_of([]), 0, None, entered, other, "full_attention")
        self.apply(worker, event)
        self.apply(worker, BlocksRemoved(hashes[::-1], left, group))

    @rule(data=st.data(), worker=WORKERS, place=PLACES, variant=st.sampled_from([0, 0, 1]))
    def remove(self, data: st.DataObject, worker: WorkerId, place: tuple[str, int], variant: int) -> None:
        path = data.draw(st.sampled_from([*self.paths, (1,)]))
        tail_first = range(len(path), data.draw(st.integers(0, len(path) - 1)), -1)
        positions = data.draw(st.sampled_from([list(tail_first), [tail_first[-1]], [tail_first[0]]]))
        self.apply(worker, BlocksRemoved([name(worker, path[:i], variant) for i in positions], *place))

    @rule(
        worker=WORKERS,
        path=PATHS,
        positions=st.sets(st.integers(1, 12)),
        place=OTHERS,
        has_kind=st.booleans(),
    )
    def store_in_group(
        self, worker: WorkerId, path: Path, positions: set[int], place: tuple[str, int], has_kind: bool
    ) -> None:
        """Store any blocks of a path, the others masked, in a group beside full attention: before or after
        the blocks of full attention, and with the group's kind or, like an offload tier, without."""
        self.paths[path] = None
        size = SIZES[worker] or 1
        hashes = [name(worker, path[:i], 0) for i in sorted(positions) if i <= len(path)]
        tokens = tokens_of([token for token in path for _ in range(size)] if has_kind else [])
        kind, ratio, window = GROUPS[place[1]] if has_kind and place[1] in GROUPS else (None, 0, None)
        self.apply(worker, BlocksStored(hashes, None, tokens, ratio * size, None, *place, kind, window))

    @rule(worker=WORKERS, path=PATHS, positions=st.sets(st.integers(1, 12)), place=OTHERS)
    def remove_in_group(
        self, worker: WorkerId, path: Path, positions: set[int], place: tuple[str, int]
    ) -> None:
        hashes = [name(worker, path[:i], 0) for i in sorted(positions) if i <= len(path)]
        self.apply(worker, BlocksRemoved(hashes, *place))

    @rule(worker=WORKERS)
    def clear(self, worker: WorkerId) -> None:
        self.apply(worker, BlocksCleared())

    @rule(worker=WORKERS)
    def restart(self, worker: WorkerId) -> None:
        for index in self.twins:
            index.reset_worker(worker)

    @rule(worker=WORKERS)
    def rejoin(self, worker: WorkerId) -> None:
        for index in self.twins:
            index.drop_worker(worker)
        self.add(worker)

    @rule(num=st.integers(1, 5))
    def sweep(self, num: int) -> None:
        for _ in range(num):
            self.packed.sweep()

    @invariant()
    def both_know_the_same(self) -> None:
        for worker in SIZES:
            assert self.packed.num_blocks(worker) == self.oracle.num_blocks(worker)
            assert self.packed.applied(worker) == self.oracle.applied(worker)
            listed = list(self.packed.blocks(worker))
            assert len(listed) == len(set(listed))
            assert set(listed) == set(self.oracle.blocks(worker))
        for hashes in self.prompts():
            assert self.packed.overlap(hashes) == self.oracle.overlap(hashes)
            dropping = [index.overlap(hashes, drops_last=True) for index in self.twins]
            assert dropping[0] == dropping[1]
            limited = [index.overlap(hashes, 2) for index in self.twins]  # the router limits the others to it
            assert len({str(sorted((w, min(d, 2)) for w, d in each.items())) for each in limited}) == 1
            assert self.packed.media(hashes) == self.oracle.media(hashes)
            assert len({str(offloaded(index, hashes)) for index in self.twins}) == 1
            for worker in SIZES:
                assert self.packed.holds(worker, hashes) == self.oracle.holds(worker, hashes)

    def prompts(self) -> Iterator[list[BlockHash]]:
        for path in list(self.paths)[-8:]:
            for size in (1, 2):
                tokens = tokens_of([token for token in [*path, 0, 1] for _ in range(size)])
                hashes = hash_blocks(tokens, size, ROOT)
                yield from (hashes, hashes[: len(path)], hashes[: len(path) // 2])


Twins.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)
test_packed_index_equals_the_reference_index: Any = Twins.TestCase


def test_generated_blocks_extend_their_edge() -> None:
    index = MemoryIndex()
    index.add_worker(A, ROOT, 4)
    ids = list(range(40))
    for i in range(10):
        index.apply(A, stored(ids[i * 4 : i * 4 + 4], [i + 1], parent=i or None))
    assert len(index._edges) == 1
    assert index.overlap(prompt(ids)) == {A: 10}
    index.apply(A, BlocksRemoved([10]))
    index.apply(A, stored(range(90, 94), [11], parent=9))
    assert len(index._edges) == 1
    assert index.overlap(prompt([*ids[:36], *range(90, 94)])) == {A: 10}


def test_bits_are_reused_after_a_sweep() -> None:
    index = MemoryIndex()
    for _ in range(100):
        index.add_worker(A, ROOT, 4)
        index.apply(A, stored(range(8), [1, 2]))
        while index.sweep():
            pass
    assert index._holders[A].bit <= 2
    index.drop_worker(A)
    while index.sweep():
        pass
    assert repr(index) == "MemoryIndex(workers=0, blocks=0)"


def test_events_of_more_media_than_are_followed_are_counted_and_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = MemoryIndex()
    index.add_worker(A, ROOT, SIZE)
    for i in range(MAX_MEDIA + 2):
        index.apply(A, stored(range(SIZE), [1], medium=f"M{i}@"))
    index.apply(A, BlocksRemoved([1], "M9@"))
    index.apply(A, BlocksRemoved([1], "M0@"))
    applied = index.applied(A)
    assert (applied.num_stored, applied.num_removed, applied.num_unknown_events) == (MAX_MEDIA, 1, 3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert index.media(prompt(range(SIZE))) == {A: {f"M{i}@": 1 for i in range(1, MAX_MEDIA)}}


def test_groups_beyond_those_that_are_followed_are_ignored() -> None:
    index = MemoryIndex()
    index.add_worker(A, ROOT, SIZE)
    index.apply(A, stored(range(SIZE), [1]))
    for group in range(1, MAX_GROUPS + 5):
        index.apply(A, BlocksStored([1], None, tokens_of([]), SIZE, None, "GPU", group, "mamba"))
    assert index.applied(A).num_unknown_events == 5
    assert index.overlap(prompt(range(SIZE))) == {A: 1}


def test_shared_tiers_are_forgotten_with_their_last_worker() -> None:
    index = MemoryIndex()
    for worker in (A, B):
        index.add_worker(worker, ROOT, SIZE)
        index.apply(worker, stored(range(SIZE), [1], medium="POOL@"))
    index.drop_worker(A)
    assert list(index._sharers.values()) == [[index._holders[B]]]
    index.reset_worker(B)
    assert index._sharers == {}


def test_a_clear_of_a_few_blocks_leaves_those_in_other_media_alone() -> None:
    holdings, losses = RecordedHoldings(), RecordedLosses()
    index = MemoryIndex(losses, holdings)
    index.add_worker(A, ROOT, SIZE)
    for i in range(20):
        index.apply(A, stored([i] * SIZE, [i + 1], medium="CPU"))
    assert len(holdings.of("hold")) == 20
    gpu = prompt(range(100, 100 + SIZE))
    for _ in range(5):
        index.apply(A, stored(range(100, 100 + SIZE), [100]))
        index.apply(A, stored([0] * SIZE, [1]))
        index.apply(A, BlocksCleared())
        index.apply(A, BlocksCleared())
        assert (index.overlap(gpu), index.num_blocks(A)) == ({}, 20)
    assert index.media(prompt([0] * SIZE)) == {A: {"CPU": 1}}
    assert index.find(A, 100) is None
    assert len(holdings.of("hold")) == 5
    assert (losses.forgotten, losses.ended) == (set(gpu), [A] * 5)


def test_a_worker_that_comes_to_a_large_shared_tier_holds_its_blocks_part_by_part() -> None:
    index, num = MemoryIndex(), 3_000
    for worker in (A, B):
        index.add_worker(worker, ROOT, SIZE)
    tokens, names = range(num * SIZE), list(range(1, num + 1))
    index.apply(A, stored(tokens, names, medium="POOL@"))
    index.apply(B, stored(range(SIZE), [1], medium="POOL@"))
    held = [index.num_blocks(B)]
    index.apply(A, BlocksRemoved(names[-5:], "POOL@"))
    index.apply(A, stored(range(7, 7 + 300 * SIZE), range(num + 1, num + 301), medium="POOL@"))
    while index.sweep():
        held.append(index.num_blocks(B))
    assert max(after - before for before, after in pairwise([0, *held])) < num / 2
    assert index.num_blocks(A) == index.num_blocks(B) == num + 295
    assert index.overlap(prompt(tokens)) == {A: num - 5, B: num - 5}


def test_a_shared_tier_of_a_worker_that_leaves_is_joined_no_further() -> None:
    index, num = MemoryIndex(), 3_000
    for worker in (A, B):
        index.add_worker(worker, ROOT, SIZE)
    index.apply(A, stored(range(num * SIZE), list(range(1, num + 1)), medium="POOL@"))
    index.apply(B, stored(range(SIZE), [1], medium="POOL@"))
    index.drop_worker(A)
    while index.sweep():
        pass
    assert 0 < index.num_blocks(B) < num
    assert set(index.overlap(prompt(range(SIZE)))) == {B}


class RecordedLosses:
    """Observer that records the blocks that an index loses."""

    def __init__(self) -> None:
        self.evicted: list[int] = []
        self.forgotten: set[int] = set()
        self.ended: list[WorkerId] = []

    def evict(self, block: BlockHash) -> None:
        self.evicted.append(block)

    def forget(self, blocks: bytes) -> None:
        self.forgotten |= set(memoryview(blocks).cast("Q"))

    def end(self, worker: WorkerId) -> None:
        self.ended.append(worker)


def test_observer_is_notified_of_lost_blocks() -> None:
    losses = RecordedLosses()
    index = MemoryIndex(losses)
    for worker in (A, B):
        index.add_worker(worker, ROOT, SIZE)
        index.apply(worker, stored(range(3 * SIZE), [1, 2, 3]))
    blocks = prompt(range(3 * SIZE))
    index.apply(A, BlocksRemoved([3]))
    assert (losses.evicted, losses.ended) == ([blocks[2]], [])
    index.reset_worker(A)
    assert losses.forgotten == set()
    while index.sweep():
        pass
    assert (losses.forgotten, losses.ended) == (set(blocks[:2]), [A])
    index.apply(B, BlocksCleared())
    index.drop_worker(A)
    while index.sweep():
        pass
    assert (losses.forgotten, losses.ended) == (set(blocks), [A, B, A])
