"""The inventory against the reference index: a follower that applies its log knows what it knows."""

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
from gateway.index.followed_tiers import MAX_MEDIA
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
    """An engine's own hash of a block and all before it: integers in one variant, bytes in the other."""
    bits = bytes([1, *path])
    return bits if variant else int(bits.hex(), 2)


def answers(index: Index, hashes: list[BlockHash]) -> Any:
    return index.overlap(hashes), index.media(hashes)


class FollowedLog(RuleBasedStateMachine):
    """Followers of A's log and of B's events, in one tree and with small limits."""

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
        self.inventory, self.successor = Inventory(ROOT, 1), Inventory(ROOT, 1)
        self.paths: dict[Path, None] = {}
        self.has_groups = False
        self.proven: set[BlockHash] = set()

    @initialize(has_groups=st.booleans())
    def choose(self, has_groups: bool) -> None:
        """Either several groups, or blocks with several engine hashes: groups identify blocks by engine hash,
        and a late follower does not learn which of two hashes a group used before a removal."""
        self.has_groups = has_groups

    def teardown(self) -> None:
        """Remove all blocks, and assert that no link is left."""
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
        changes = self.inventory.apply(event) if worker == A else [event]
        self.follow(worker, changes)
        for change in changes if worker == A else ():
            self.successor.apply(change)

    def follow(self, worker: WorkerId, events: Iterable[KvEvent]) -> None:
        for event in events:
            for follower in self.followers:
                follower.apply(worker, event)

    @rule(from_snapshot=st.booleans())
    def take_over(self, from_snapshot: bool) -> None:
        """Another inventory continues, made of this one's snapshot or of its whole log."""
        if from_snapshot:
            self.successor = Inventory(ROOT, 1)
            for event in self.inventory.snapshot():
                self.successor.apply(event)
        self.inventory, self.successor = self.successor, self.inventory
        self.inventory.applied, self.successor.applied = self.successor.applied, self.inventory.applied

    @rule(
        worker=st.sampled_from([A, A, B]), path=PATHS, at=st.integers(0, 10), place=PLACES, variant=VARIANTS
    )
    def store(self, worker: WorkerId, path: Path, at: int, place: tuple[str, int], variant: int) -> None:
        """Store a run behind any block of its path: known, removed or never stored."""
        at, variant = at % len(path), 0 if self.has_groups else variant
        self.paths[path] = None
        hashes = [name(path[:i], variant) for i in range(at + 1, len(path) + 1)]
        parent = name(path[:at], variant) if at else None
        self.apply(
            worker, BlocksStored(hashes, parent, tokens_of(path[at:]), 1, None, *place, "full_attention")
        )

    @rule(path=PATHS, places=st.lists(PLACES, min_size=2, max_size=2))
    def move(self, path: Path, places: list[tuple[str, int]]) -> None:
        """Store blocks in another medium without tokens, then remove them from the first, tail first."""
        hashes = [name(path[:i], 0) for i in range(1, len(path) + 1)]
        left, entered = places
        self.apply(A, BlocksStored(hashes, None, tokens_of([]), 0, None, *entered, "full_attention"))
        self.apply(A, BlocksRemoved(hashes[::-1], *left))

    @rule(data=st.data(), worker=st.sampled_from([A, A, B]), place=PLACES, variant=VARIANTS)
    def remove(self, data: st.DataObject, worker: WorkerId, place: tuple[str, int], variant: int) -> None:
        """Remove any blocks of a path, also from its middle."""
        path = data.draw(st.sampled_from([*self.paths, (1,)]))
        positions = data.draw(st.lists(st.integers(1, len(path)), min_size=1, unique=True))
        self.apply(worker, BlocksRemoved([name(path[:i], variant) for i in positions], *place))

    @precondition(lambda self: self.has_groups)
    @rule(path=PATHS, positions=st.sets(st.integers(1, 10)), place=OTHERS, has_kind=st.booleans())
    def store_in_group(self, path: Path, positions: set[int], place: tuple[str, int], has_kind: bool) -> None:
        """Store any blocks of a path, with the group's kind or, like an offload tier, without."""
        hashes = [name(path[:i], 0) for i in sorted(positions) if i <= len(path)]
        kind, window = GROUPS[place[1]] if has_kind else (None, None)
        tokens = tokens_of(path if has_kind else ())
        self.apply(A, BlocksStored(hashes, None, tokens, int(has_kind), None, *place, kind, window))

    @rule(path=PATHS, positions=st.sets(st.integers(1, 10)), place=OTHERS)
    def remove_in_group(self, path: Path, positions: set[int], place: tuple[str, int]) -> None:
        hashes = [name(path[:i], 0) for i in sorted(positions) if i <= len(path)]
        self.apply(A, BlocksRemoved(hashes, *place))

    @precondition(lambda self: not self.has_groups)
    @rule(path=PATHS)
    def prove(self, path: Path) -> None:
        """Prove each block that is not proven yet, under kvgate's own hash, like `proofs.py`."""
        blocks = hash_blocks(tokens_of(path), 1, ROOT)
        for before, block in zip([None, *blocks], blocks, strict=False):
            if block not in self.proven:
                self.proven.add(block)
                self.apply(A, RunStored([block], [block], before, before or ROOT, *LINKS))

    @precondition(lambda self: self.proven)
    @rule(data=st.data())
    def end_proof(self, data: st.DataObject) -> None:
        positions = data.draw(st.sets(st.sampled_from(sorted(self.proven)), min_size=1))
        self.proven -= positions
        self.apply(A, BlocksRemoved(sorted(positions), *LINKS))

    @rule()
    def take_proofs_back(self) -> None:
        """End all proofs, as a new leader does, which does not know when they expire."""
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
    def follow_again(self) -> None:
        """Start the followers again from a snapshot."""
        for follower in self.followers:
            follower.reset_worker(A)
        self.follow(A, self.inventory.snapshot())

    @invariant()
    def all_know_the_same(self) -> None:
        assert sorted(self.inventory.blocks()) == sorted(self.truth.blocks(A))
        assert self.inventory.num_blocks == self.truth.num_blocks(A)
        assert self.inventory.applied == self.truth.applied(A)
        for follower in self.followers:
            for worker in (A, B):
                assert set(follower.blocks(worker)) == set(self.truth.blocks(worker))
                assert follower.num_blocks(worker) == self.truth.num_blocks(worker)
            for path in list(self.paths)[-8:]:
                hashes = hash_blocks(tokens_of([*path, 0, 1]), 1, ROOT)
                assert answers(follower, hashes) == answers(self.truth, hashes)


FollowedLog.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)
test_followers_know_the_same_as_the_inventory: Any = FollowedLog.TestCase


def filled(*events: KvEvent) -> Inventory:
    inventory = Inventory(ROOT, SIZE)
    for event in events:
        inventory.apply(event)
    return inventory


def test_media_beyond_those_that_are_followed_have_no_effect() -> None:
    inventory = Inventory(ROOT, SIZE)
    for i in range(MAX_MEDIA):
        assert inventory.apply(stored(range(SIZE), [1], medium=f"M{i}"))
    assert inventory.apply(stored(range(SIZE), [1], medium="FURTHER")) == []
    assert inventory.applied.num_unknown_events == 1


def test_snapshot_has_a_conversation_as_one_run() -> None:
    run = prompt(range(40))
    inventory = filled(*(stored(range(i * 4, i * 4 + 4), [i + 1], parent=i or None) for i in range(10)))
    assert list(inventory.snapshot()) == [RunStored(run, list(range(1, 11)), None, ROOT)]


def test_removed_blocks_stay_as_links_until_their_children_are_removed() -> None:
    run = prompt(range(16))
    inventory = filled(stored(range(16), [1, 2, 3, 4]), BlocksRemoved([2]), BlocksRemoved([3]))
    assert repr(inventory) == "Inventory(2 blocks, 2 links)"
    assert list(inventory.snapshot()) == [
        RunStored(run[:1], [1], None, ROOT),
        RunStored(run[1:3], run[1:3], 1, run[0], "GPU", -1),
        RunStored(run[3:], [4], run[2], run[2]),
        BlocksRemoved(run[1:3], "GPU", -1),
    ]
    inventory.apply(BlocksRemoved([4]))
    assert repr(inventory) == "Inventory(1 blocks, 0 links)"


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
def test_event_without_effect_is_not_logged(event: KvEvent) -> None:
    inventory = filled(stored(range(100, 104), [1]))
    assert inventory.apply(event) == []
    assert inventory.num_blocks == 1


def test_proven_blocks_stay_through_snapshots_until_their_proof_ends() -> None:
    """Proofs stay also where an offload tier may still report a removed block by its engine hash."""
    run, cpu = prompt(range(16)), BlocksStored([2], None, tokens_of([]), 0, medium="CPU")
    inventory = filled(
        stored(range(8), [1, 2]),
        cpu,
        BlocksRemoved([1, 2]),
        BlocksRemoved([2], medium="CPU"),
        RunStored(run[:3], run[:3], None, ROOT, *LINKS),
    )
    orphan = RunStored(run[3:], [b"4"], run[2], run[2])  # located, with the key of its engine hash
    assert inventory.apply(orphan) == [RunStored(run[3:], [key_of(b"4")], run[2], run[2])]
    for _ in range(2):
        successor = filled(*inventory.snapshot())
        assert [inventory.leading(run), successor.leading(run), successor.num_blocks] == [4, 4, 4]
        inventory = successor
    assert (inventory.find(b"4"), inventory.find(run[0]), inventory.find(5)) == (run[3], run[0], None)
    changes = [each for event in list(inventory.proven()) for each in inventory.apply(event)]
    assert changes == [BlocksRemoved(run[:3], *LINKS)]
    assert (inventory.leading(run), list(inventory.blocks()), list(inventory.proven())) == (0, run[3:], [])


@pytest.mark.parametrize("group", [0, 1])
def test_group_beside_full_attention_is_reported(group: int) -> None:
    kind, window = GROUPS.get(group, ("full_attention", None))
    event = BlocksStored([5], None, tokens_of([]), SIZE, None, "GPU", group, kind, window)
    assert filled(stored(range(4), [1]), event).has_groups is (group == 1)


def test_sample_is_a_path_of_stored_blocks_from_the_root() -> None:
    rng = random.Random(3)
    assert filled().sample(rng) == []
    inventory = filled(stored(range(12), [1, 2, 3]), stored(range(100, 108), [4, 5]))
    samples = {tuple(inventory.sample(rng)) for _ in range(50)}
    blocks = list(inventory.blocks())
    assert samples == {(*blocks[:1],), (*blocks[:2],), (*blocks[:3],), (blocks[3],), (*blocks[3:],)}
    inventory.apply(BlocksRemoved([2]))
    assert max(len(inventory.sample(rng)) for _ in range(50)) == 2  # only the other path is complete


def test_reset_forgets_blocks_and_keeps_the_counts() -> None:
    inventory = filled(stored(range(8), [1, 2]))
    inventory.reset()
    assert (list(inventory.snapshot()), inventory.applied.num_stored) == ([], 2)


@pytest.mark.parametrize("group", [0, 1])
def test_snapshot_has_the_kind_of_a_group_without_blocks(group: int) -> None:
    kind, window = GROUPS.get(group, ("full_attention", None))
    inventory = filled(BlocksStored([], None, tokens_of([]), 1, None, "GPU", group, kind, window))
    successor = filled(*inventory.snapshot())
    assert successor._kinds == inventory._kinds != {}
    assert list(successor.snapshot()) == list(inventory.snapshot())


def test_a_snapshot_says_that_an_offload_tier_is_empty_now() -> None:
    """Such a tier may take a block from the GPU that was removed there a moment before."""
    left = filled(
        stored(range(4), [1], medium="CPU"), BlocksStored([1], None, tokens_of([]), 0, None, "GPU", 0)
    )
    left.apply(BlocksRemoved([1], "CPU", 0))
    follower, successor = MemoryIndex(), Inventory(ROOT, SIZE)
    follower.add_worker(A, ROOT, SIZE)
    for event in left.snapshot():
        successor.apply(event)
        follower.apply(A, event)
    moved = [BlocksRemoved([1], "GPU", 0), BlocksStored([1], None, tokens_of([]), 0, None, "CPU", 0)]
    for event in moved:
        for change in left.apply(event):
            successor.apply(change)
            follower.apply(A, change)
    assert left.num_blocks == successor.num_blocks == follower.num_blocks(A) == 1
