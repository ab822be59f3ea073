"""The inventory against the plain index: whoever applies what it tells knows what it knows."""

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.blocks import BlockHash, hash_blocks, tokens_of
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
from gateway.index import edges, engine_hashes, inventory, memory, reference
from gateway.index.base import Index
from gateway.index.engine_hashes import key_of
from gateway.index.inventory import LINKS, Inventory
from gateway.index.memory import MemoryIndex
from gateway.index.reference import ReferenceIndex
from tests.index.contract import ROOT, SIZE, A, B, prompt, stored

PLACES = st.sampled_from([("GPU", 0), ("GPU", 0), ("GPU", 0), ("GPU", 2), ("CPU", 0), ("DISK", 0)])
PATHS = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=10).map(tuple)
OTHERS = st.sampled_from([("GPU", 1), ("GPU", 1), ("CPU", 1), ("GPU", 3), ("GPU", 4)])
GROUPS = {1: ("sliding_window", 3), 3: ("mamba", None), 4: ("chunked_local_attention", None)}
VARIANTS = st.sampled_from([0, 0, 1])
EXAMPLES = int(os.environ.get("KVGATE_EXAMPLES", "150"))

Path = tuple[int, ...]


def name(path: Path, variant: int) -> EngineHash:
    """An engine's own hash of a block and all before it; of one variant integers, of the other bytes."""
    bits = bytes([1, *path])
    return bits if variant else int(bits.hex(), 2)


def told(index: Index, hashes: list[BlockHash]) -> Any:
    return index.overlap(hashes), index.media(hashes)


class FollowedLog(RuleBasedStateMachine):
    """Worker A is known by its agent, B beside it by its tokens, in one tree; limits are small."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(edges, "MAX_BLOCKS", 4)
        self.patch.setattr(engine_hashes, "AVERAGE", 2)
        self.patch.setattr(inventory, "PART_BLOCKS", 3)
        for module in (inventory, memory, reference):
            self.patch.setattr(module, "MAX_REMOVED", 4)
        self.truth, self.followers = ReferenceIndex(), (MemoryIndex(), ReferenceIndex())
        for index in (self.truth, *self.followers):
            for worker in (A, B):
                index.add_worker(worker, ROOT, 1)
        self.inventory, self.heir = Inventory(ROOT, 1), Inventory(ROOT, 1)
        self.paths: dict[Path, None] = {}
        self.has_groups = False
        self.proven: set[BlockHash] = set()

    @initialize(has_groups=st.booleans())
    def choose(self, has_groups: bool) -> None:
        """Either several groups, or blocks with several engine hashes: groups join by those, and which of
        two a group spoke of before it was removed is not told to who comes late."""
        self.has_groups = has_groups

    def teardown(self) -> None:
        """What is not held by then leaves no link behind."""
        for event in list(self.inventory.proven()):
            self.inventory.apply(event)
        for path in self.paths:
            for variant in (0, 1):
                for medium, group in (("GPU", 0), ("GPU", 2), ("CPU", 0), ("DISK", 0)):
                    for i in range(1, len(path) + 1):
                        removed = BlocksRemoved([name(path[:i], variant)] * 40, medium, group)
                        self.inventory.apply(removed)
        for left in list(self.inventory._removed):
            self.inventory._forget_removed(left)
        assert repr(self.inventory) == "Inventory(0 blocks, 0 links)"
        assert not self.inventory._aliases and not self.inventory._children and not self.inventory._copies
        self.patch.undo()

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        self.truth.apply(worker, event)
        told = self.inventory.apply(event) if worker == A else [event]
        self.follow(worker, told)
        for each in told if worker == A else ():
            self.heir.apply(each)

    def follow(self, worker: WorkerId, events: Iterable[KvEvent]) -> None:
        for event in events:
            for follower in self.followers:
                follower.apply(worker, event)

    @rule(from_snapshot=st.booleans())
    def take_over(self, from_snapshot: bool) -> None:
        """Another inventory goes on, made of what this one told: its snapshot, or all along."""
        if from_snapshot:
            self.heir = Inventory(ROOT, 1)
            for event in self.inventory.snapshot():
                self.heir.apply(event)
        self.inventory, self.heir = self.heir, self.inventory
        self.inventory.applied, self.heir.applied = self.heir.applied, self.inventory.applied

    @rule(
        worker=st.sampled_from([A, A, B]), path=PATHS, at=st.integers(0, 10), place=PLACES, variant=VARIANTS
    )
    def store(self, worker: WorkerId, path: Path, at: int, place: tuple[str, int], variant: int) -> None:
        """A run behind any block of its path: known, forgotten or never heard of."""
        at, variant = at % len(path), 0 if self.has_groups else variant
        self.paths[path] = None
        hashes = [name(path[:i], variant) for i in range(at + 1, len(path) + 1)]
        parent = name(path[:at], variant) if at else None
        self.apply(
            worker, BlocksStored(hashes, parent, tokens_of(path[at:]), 1, None, *place, "full_attention")
        )

    @rule(path=PATHS, places=st.lists(PLACES, min_size=2, max_size=2))
    def move(self, path: Path, places: list[tuple[str, int]]) -> None:
        """To another medium by a store without tokens, then out of the first, tail first."""
        hashes = [name(path[:i], 0) for i in range(1, len(path) + 1)]
        left, entered = places
        self.apply(A, BlocksStored(hashes, None, tokens_of([]), 0, None, *entered, "full_attention"))
        self.apply(A, BlocksRemoved(hashes[::-1], *left))

    @rule(data=st.data(), worker=st.sampled_from([A, A, B]), place=PLACES, variant=VARIANTS)
    def remove(self, data: st.DataObject, worker: WorkerId, place: tuple[str, int], variant: int) -> None:
        """Of any part of a path: holes too."""
        path = data.draw(st.sampled_from([*self.paths, (1,)]))
        some = data.draw(st.lists(st.integers(1, len(path)), min_size=1, unique=True))
        self.apply(worker, BlocksRemoved([name(path[:i], variant) for i in some], *place))

    @precondition(lambda self: self.has_groups)
    @rule(path=PATHS, some=st.sets(st.integers(1, 10)), place=OTHERS, is_told=st.booleans())
    def store_in_group(self, path: Path, some: set[int], place: tuple[str, int], is_told: bool) -> None:
        """Any blocks of a path, with the group's kind or, as an offload tier tells it, without."""
        hashes = [name(path[:i], 0) for i in sorted(some) if i <= len(path)]
        kind, window = GROUPS[place[1]] if is_told else (None, None)
        tokens = tokens_of(path if is_told else ())
        self.apply(A, BlocksStored(hashes, None, tokens, int(is_told), None, *place, kind, window))

    @rule(path=PATHS, some=st.sets(st.integers(1, 10)), place=OTHERS)
    def remove_in_group(self, path: Path, some: set[int], place: tuple[str, int]) -> None:
        hashes = [name(path[:i], 0) for i in sorted(some) if i <= len(path)]
        self.apply(A, BlocksRemoved(hashes, *place))

    @precondition(lambda self: not self.has_groups)
    @rule(path=PATHS)
    def prove(self, path: Path) -> None:
        """As `proofs.py` does: each block that is not proven yet, under our own hash."""
        blocks = hash_blocks(tokens_of(path), 1, ROOT)
        for before, block in zip([None, *blocks], blocks, strict=False):
            if block not in self.proven:
                self.proven.add(block)
                self.apply(A, RunStored([block], [block], before, before or ROOT, *LINKS))

    @precondition(lambda self: self.proven)
    @rule(data=st.data())
    def end_proof(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.proven)), min_size=1))
        self.proven -= some
        self.apply(A, BlocksRemoved(sorted(some), *LINKS))

    @rule()
    def take_proofs_back(self) -> None:
        """Whoever takes over does not know when they end."""
        for event in list(self.inventory.proven()):
            self.proven.difference_update(event.engine_hashes)  # type: ignore[arg-type]
            self.apply(A, event)
        assert not self.proven

    @rule(worker=st.sampled_from([A, B]))
    def clear(self, worker: WorkerId) -> None:
        self.apply(worker, BlocksCleared())
        if worker == A:
            self.proven.clear()

    @rule()
    def begin_again(self) -> None:
        """A follower that comes late."""
        for follower in self.followers:
            follower.reset_worker(A)
        self.follow(A, self.inventory.snapshot())

    @invariant()
    def the_same_is_known(self) -> None:
        assert sorted(self.inventory.blocks()) == sorted(self.truth.blocks(A))
        assert self.inventory.num_blocks == self.truth.num_blocks(A)
        assert self.inventory.applied == self.truth.applied(A)
        for follower in self.followers:
            for worker in (A, B):
                assert set(follower.blocks(worker)) == set(self.truth.blocks(worker))
                assert follower.num_blocks(worker) == self.truth.num_blocks(worker)
            for path in list(self.paths)[-8:]:
                hashes = hash_blocks(tokens_of([*path, 0, 1]), 1, ROOT)
                assert told(follower, hashes) == told(self.truth, hashes)


FollowedLog.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)
test_followed: Any = FollowedLog.TestCase


def filled(*events: KvEvent) -> Inventory:
    known = Inventory(ROOT, SIZE)
    for event in events:
        known.apply(event)
    return known


def test_a_conversation_is_one_run_in_a_snapshot() -> None:
    run = prompt(range(40))
    known = filled(*(stored(range(i * 4, i * 4 + 4), [i + 1], parent=i or None) for i in range(10)))
    assert list(known.snapshot()) == [RunStored(run, list(range(1, 11)), None, ROOT)]


def test_what_lies_before_a_hole_is_a_link_until_its_children_are_gone() -> None:
    run = prompt(range(16))
    known = filled(stored(range(16), [1, 2, 3, 4]), BlocksRemoved([2]), BlocksRemoved([3]))
    assert repr(known) == "Inventory(2 blocks, 2 links)"
    assert list(known.snapshot()) == [
        RunStored(run[:1], [1], None, ROOT),
        RunStored(run[1:3], run[1:3], 1, run[0], "GPU", -1),
        RunStored(run[3:], [4], run[2], run[2]),
        BlocksRemoved(run[1:3], "GPU", -1),
    ]
    known.apply(BlocksRemoved([4]))
    assert repr(known) == "Inventory(1 blocks, 0 links)"


@pytest.mark.parametrize(
    "event",
    [
        stored(range(4), [5], parent=77),
        stored(range(7), [5, 6]),
        stored([], []),
        stored(range(4), [5], spec_kind="sliding_window"),
        BlocksStored([5], None, tokens_of(range(8)), 8),
        BlocksStored([5], None, tokens_of([]), 0, medium="CPU"),
        BlocksRemoved([5]),
        UnknownEvent("Novelty"),
    ],
)
def test_what_changes_nothing_is_not_told(event: KvEvent) -> None:
    known = filled(stored(range(100, 104), [1]))
    assert known.apply(event) == []
    assert known.num_blocks == 1


def test_what_is_proven_stays_through_snapshots_until_it_is_taken_back() -> None:
    """Also where an offload tier may still call a block that was removed under its name."""
    run, cpu = prompt(range(16)), BlocksStored([2], None, tokens_of([]), 0, medium="CPU")
    known = filled(
        stored(range(8), [1, 2]),
        cpu,
        BlocksRemoved([1, 2]),
        BlocksRemoved([2], medium="CPU"),
        RunStored(run[:3], run[:3], None, ROOT, *LINKS),
    )
    orphan = RunStored(run[3:], [b"4"], run[2], run[2])  # of that name, placed: told as all names are
    assert known.apply(orphan) == [RunStored(run[3:], [key_of(b"4")], run[2], run[2])]
    for _ in range(2):
        heir = filled(*known.snapshot())
        assert [known.leading(run), heir.leading(run), heir.num_blocks] == [4, 4, 4]
        known = heir
    assert (known.find(b"4"), known.find(run[0]), known.find(5)) == (run[3], run[0], None)
    told = [each for event in list(known.proven()) for each in known.apply(event)]
    assert told == [BlocksRemoved(run[:3], *LINKS)]
    assert (known.leading(run), list(known.blocks()), list(known.proven())) == (0, run[3:], [])


@pytest.mark.parametrize("group", [0, 1])
def test_a_group_beside_full_attention_is_said(group: int) -> None:
    kind, window = GROUPS.get(group, ("full_attention", None))
    told = BlocksStored([5], None, tokens_of([]), SIZE, None, "GPU", group, kind, window)
    assert filled(stored(range(4), [1]), told).has_groups is (group == 1)


def test_a_sample_is_a_line_from_the_root_as_far_as_it_is_held() -> None:
    rng = random.Random(3)
    assert filled().sample(rng) == []
    kept = filled(stored(range(12), [1, 2, 3]), stored(range(100, 108), [4, 5]))
    lines = {tuple(kept.sample(rng)) for _ in range(50)}
    blocks = list(kept.blocks())
    assert lines == {(*blocks[:1],), (*blocks[:2],), (*blocks[:3],), (blocks[3],), (*blocks[3:],)}
    kept.apply(BlocksRemoved([2]))
    assert max(len(kept.sample(rng)) for _ in range(50)) == 2  # behind the hole only the other line is whole


def test_a_reset_forgets_blocks_and_keeps_counting() -> None:
    known = filled(stored(range(8), [1, 2]))
    known.reset()
    assert (list(known.snapshot()), known.applied.num_stored) == ([], 2)


@pytest.mark.parametrize("group", [0, 1])
def test_of_which_kind_a_group_is_that_holds_nothing_is_told_to_who_comes_late(group: int) -> None:
    kind, window = GROUPS.get(group, ("full_attention", None))
    empty = filled(BlocksStored([], None, tokens_of([]), 1, None, "GPU", group, kind, window))
    heir = filled(*empty.snapshot())
    assert heir._kinds == empty._kinds != {}
    assert list(heir.snapshot()) == list(empty.snapshot())
