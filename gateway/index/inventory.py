"""What one worker holds, as its agent keeps it: to be told to others, never looked up.

    parents   block ─► the block before it        all that is held, and what lies before it
    places    (medium, group) ─► name ─► block    what each engine hash means there
    copies    (place, name) ─► count              only where it is not 1
    names     block ─► count of its names         only where it is not 1; 0: not held, a link to its children
    children  block ─► count                      only where it is not 1
    left      name ─► block                       removed, and may be called once more by an offload tier
    others    (medium, group) ─► name ─► count    of groups beside full attention, that followers join by name

It takes engines' events as an index does, and answers with what came of each: the same in our hashes, to
be applied by those who follow. A snapshot is made of the same events and begins with an empty worker. A
block that was evicted before its children (holes are real) stays as long as it has some: a follower that
shares its tree between workers must know where they belong.

About 200 bytes a block: an agent has one worker, where a gateway has hundreds.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import TypeAlias

from gateway.core.blocks import BlockHash, hash_blocks, tokens_of
from gateway.core.kv_events import (
    GPU,
    SHARED,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    KvEvent,
    RunStored,
    UnknownEvent,
)
from gateway.index.base import LINKS as LINK_GROUP
from gateway.index.base import MAX_LEFT, PLACE_COST, Applied, is_partial, is_prefix_group
from gateway.index.engine_hashes import name_of, names_of
from gateway.index.holder import one_less
from gateway.index.kv_groups import is_followed

Place: TypeAlias = tuple[str, int]
Kind: TypeAlias = tuple[str, int, int | None]
"""Of a group: kind, tokens per block, tokens of its window."""

LINKS: Place = (GPU, LINK_GROUP)
"""Where a snapshot puts blocks that are not held and have children that are, until its end. Each is
named by its own hash there."""
LEFT: Place = ("LEFT", -2)
"""The same for those of `left`, under the names that they had: who removes them remembers them too."""
PART_BLOCKS = 1024
"""Of one event in a snapshot, as in `ingest/chunks.py`: what a follower takes in a millisecond or two."""

SAMPLED_FROM = 1000
"""Blocks at each end of the table: to go further into it takes time."""

_NO_TOKENS = tokens_of(())


class Inventory:
    def __init__(self, root: BlockHash, block_size: int) -> None:
        self.root = root
        self.block_size = block_size
        self.applied = Applied()
        self.reset()

    def __repr__(self) -> str:
        return f"Inventory({self.num_blocks} blocks, {self.num_links} links)"

    def reset(self) -> None:
        self._parents: dict[BlockHash, BlockHash] = {}
        self._places: dict[Place, dict[int, BlockHash]] = {}
        self._copies: dict[tuple[Place, int], int] = {}
        self._names: dict[BlockHash, int] = {}
        self._children: dict[BlockHash, int] = {}
        self._left: OrderedDict[int, BlockHash] = OrderedDict()
        self._has_tiers = False
        self._others: dict[Place, dict[int, int]] = {}
        self._kinds: dict[int, Kind] = {}
        self.num_links = 0

    @property
    def num_blocks(self) -> int:
        return len(self._parents) - self.num_links

    def blocks(self) -> Iterator[BlockHash]:
        """What is held, each once; not to be changed meanwhile."""
        return (block for block in self._parents if self._names.get(block, 1))

    def num_kept(self, on_gpu: bool) -> int:
        num = sum(len(n) for p, n in self._places.items() if (p[0] == GPU) is on_gpu and p != LINKS)
        num += sum(len(names) for place, names in self._others.items() if (place[0] == GPU) is on_gpu)
        return num + len(self._copies) + PLACE_COST * (len(self._places) + len(self._kinds))

    def leading(self, blocks: Sequence[BlockHash]) -> int:
        """How many of a prompt's are held, from the first on."""
        parents, names = self._parents, self._names
        return sum(1 for _ in takewhile(lambda block: block in parents and names.get(block, 1), blocks))

    def find(self, name: EngineHash) -> BlockHash | None:
        return self._find(name_of(name))

    @property
    def has_groups(self) -> bool:
        """Beside one of full attention."""
        return not all(map(self._is_alone, self._kinds))

    def proven(self) -> Iterator[BlocksRemoved]:
        """What takes back all that lies here under our own hashes (`proofs.py`)."""
        here = self._places.get(LINKS, {})
        names = [name for name in here for _ in range(self._copies.get((LINKS, name), 1))]
        for start in range(0, len(names), PART_BLOCKS):
            yield BlocksRemoved(names[start : start + PART_BLOCKS], *LINKS)

    def sample(self, rng: random.Random) -> list[BlockHash]:
        """The line from the root to one of the oldest or youngest blocks, as far as it is held."""
        ends = (iter, reversed)[rng.randrange(2)](self._parents)
        start = rng.randrange(min(len(self._parents), SAMPLED_FROM)) if self._parents else 0
        block, line = next(islice(ends, start, None), None), list[BlockHash]()
        while block is not None and block in self._parents:
            line.append(block)
            block = self._parents[block]
        return list(takewhile(lambda held: self._names.get(held, 1), reversed(line)))[:PART_BLOCKS]

    def apply(self, event: KvEvent) -> list[KvEvent]:
        """What it came to, for followers; nothing where it concerns no prefix or cannot be placed."""
        match event:
            case BlocksStored():
                return self._stored(event)
            case RunStored():
                return self._store_run(event)
            case BlocksRemoved():
                return self._remove(event)
            case BlocksCleared():
                return self._clear(event)
            case UnknownEvent():
                self.applied.num_unknown_events += 1
        return []

    # events ------------------------------------------------------------------------------------

    def _learn(self, group: int, kind: Kind) -> list[KvEvent]:
        """Of which kind a group is; one that is alone, and of full attention, is what its runs tell."""
        if group in self._kinds or group < 0:
            return []
        self._kinds[group] = kind
        told = self._kinds if len(self._kinds) == 2 else () if self._is_alone(group) else [group]
        return [self._grouped([], (GPU, each)) for each in told]

    def _is_alone(self, group: int) -> bool:
        return len(self._kinds) == 1 and is_prefix_group(group, self._kinds[group][0])

    def _stored(self, event: BlocksStored) -> list[KvEvent]:
        group, kind = event.group_idx, event.spec_kind
        known = self._kinds[group][0] if group in self._kinds else None
        if is_prefix_group(group, kind or known):
            told = self._store(event) if event.tokens else self._copy(event)
            full = ("full_attention", self.block_size, None)
            return [*self._learn(group, full), *told] if told or not event.engine_hashes else []
        news = self._learn(group, (kind, event.block_size, event.window)) if kind else []
        return [*news, *self._store_other(event)]

    def _store_other(self, event: BlocksStored) -> list[KvEvent]:
        names = names_of(event.engine_hashes)
        self.applied.num_stored += len(names)
        kind, size, _ = self._kinds.get(event.group_idx, (None, 0, None))
        if not is_followed(kind, size, self.block_size):
            return []
        place = (event.medium, event.group_idx)
        here = self._others.setdefault(place, {})
        for name in names:
            here[name] = 1 if SHARED in place[0] else here.get(name, 0) + 1
        return [self._grouped(names, place)]

    def _grouped(self, names: Sequence[int], place: Place) -> BlocksStored:
        kind, size, window = self._kinds[place[1]]
        return BlocksStored(names, None, _NO_TOKENS, size or self.block_size, None, *place, kind, window)

    def _store(self, event: BlocksStored) -> list[KvEvent]:
        names, size = names_of(event.engine_hashes), event.block_size
        parent = None if event.parent is None else name_of(event.parent)
        before = self.root if parent is None else self._find(parent)
        if before is None:
            self.applied.num_orphans += len(names)
            return []
        if size != self.block_size or len(event.tokens) != size * len(names):
            self.applied.num_mismatched += not is_partial(event, self.block_size)
            return []
        blocks = hash_blocks(event.tokens, size, before, event.extra_keys)
        place, last = (event.medium, event.group_idx), before
        for name, block in zip(names, blocks, strict=True):
            self._hold(place, name, block, last)
            last = block
        return [RunStored(blocks, names, parent, before, *place)] if blocks else []

    def _store_run(self, event: RunStored) -> list[KvEvent]:
        """Told by another inventory, whose place this one takes, or by `blind_recovery.py`."""
        names = names_of(event.engine_hashes)
        parent = None if event.parent is None else name_of(event.parent)
        before = self.root if parent is None else self._find(parent)
        if before != event.before or len(event.blocks) != len(names):
            self.applied.num_orphans += len(names)
            return []
        place, last = (event.medium, event.group_idx), event.before
        self._learn(event.group_idx, ("full_attention", self.block_size, None))
        for name, block in zip(names, event.blocks, strict=True):
            self._hold(place, name, block, last)
            last = block
        return [RunStored(event.blocks, names, parent, event.before, *place)]

    def _copy(self, event: BlocksStored) -> list[KvEvent]:
        """An offload tier's store without tokens: the engine hash was stored elsewhere before."""
        place, told = (event.medium, event.group_idx), list[int]()
        for name in names_of(event.engine_hashes):
            block = self._find(name)
            if block is None:
                self.applied.num_orphans += 1
            else:
                self._hold(place, name, block, self._parents[block])
                told.append(name)
        return [_copied(told, place)] if told else []

    def _remove(self, event: BlocksRemoved) -> list[KvEvent]:
        place = (event.medium, event.group_idx)
        here, others, told = self._places.get(place, {}), self._others.get(place, {}), list[int]()
        for name in names_of(event.engine_hashes):
            if name in here:
                if not one_less(self._copies, (place, name)):
                    block = here.pop(name)
                    if place != LINKS:
                        self._leave(name, block)
                    self._release(block)
            elif name in others:
                others[name] -= 1
                if not others[name]:
                    del others[name]
            else:
                self.applied.num_unknown_removals += 1
                continue
            told.append(name)
        self.applied.num_removed += len(told)
        return [BlocksRemoved(told, *place)] if told else []

    def _clear(self, event: BlocksCleared) -> list[KvEvent]:
        """The engine's own cache is empty; offload tiers keep theirs."""
        for place in [place for place in self._places if place[0] == GPU]:
            for name, block in self._places.pop(place).items():
                self._copies.pop((place, name), None)
                self._release(block)
        for place in [place for place in self._others if place[0] == GPU]:
            del self._others[place]
        return [event]

    # the tree ----------------------------------------------------------------------------------

    def _find(self, name: int) -> BlockHash | None:
        for names in self._places.values():
            if (block := names.get(name)) is not None:
                return block
        return self._left.get(name)

    def _hold(self, place: Place, name: int, block: BlockHash, before: BlockHash) -> None:
        self.applied.num_stored += 1
        self._has_tiers |= place[0] != GPU
        here = self._places.setdefault(place, {})
        if name in here:
            if SHARED not in place[0]:  # what several store there is one
                self._copies[place, name] = self._copies.get((place, name), 1) + 1
            return
        here[name] = block
        if block in self._parents:
            was_link = self._add(self._names, block, 1) == 1
            self.num_links -= was_link
            self._forget_left(name)
            return
        self._parents[block] = before
        self._children[block] = 0
        if before in self._parents:
            self._add(self._children, before, 1)

    def _release(self, block: BlockHash) -> None:
        """One name of a block is gone; the block itself with its last, and the links that led to it."""
        if self._add(self._names, block, -1):
            return
        self.num_links += 1
        self._prune(block)

    def _prune(self, block: BlockHash) -> None:
        while not self._names.get(block, 1) and not self._children.get(block, 1):
            before = self._parents.pop(block)
            del self._names[block], self._children[block]
            self.num_links -= 1
            if before not in self._parents:
                break
            self._add(self._children, before, -1)
            block = before

    def _leave(self, name: int, block: BlockHash) -> None:
        """A name is gone from one place: where it was the last, it keeps its block as a child would."""
        if not self._has_tiers or self._find(name) is not None:
            return
        self._left[name] = block
        self._add(self._children, block, 1)
        if len(self._left) > MAX_LEFT:
            self._forget_left(next(iter(self._left)))

    def _forget_left(self, name: int) -> None:
        if (block := self._left.pop(name, None)) is not None:
            self._add(self._children, block, -1)
            self._prune(block)

    @staticmethod
    def _add(counts: dict[BlockHash, int], block: BlockHash, num: int) -> int:
        """Counts of one are not written down."""
        count = counts.pop(block, 1) + num
        if count != 1:
            counts[block] = count
        return count

    # snapshot ----------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[KvEvent]:
        """Events that make of an empty worker what this one holds: runs from the root outwards, further
        names and copies, and last of all the links are taken away. Not to be changed meanwhile."""
        first: dict[BlockHash, tuple[Place, int]] = {}
        others: list[tuple[Place, int, BlockHash]] = []
        for place, names in self._places.items():
            for name, block in names.items():
                if first.setdefault(block, (place, name)) != (place, name):
                    others.append((place, name, block))
        links = [block for block, count in self._names.items() if not count]
        first.update((block, (LINKS, block)) for block in links)
        first.update(
            (block, (LEFT, name)) for name, block in self._left.items() if not self._names.get(block, 1)
        )
        others += [(LEFT, name, block) for name, block in self._left.items() if first[block] != (LEFT, name)]
        yield from self._groups()
        for path in self._paths():
            yield from self._runs(path, first)
        copied: dict[Place, list[int]] = {}
        for place, name, block in others:
            if first[block][1] == name:
                copied.setdefault(place, []).append(name)
            else:
                yield RunStored([block], [name], *self._behind(block, first), *place)
        for (place, name), count in self._copies.items():
            copied.setdefault(place, []).extend([name] * (count - 1))
        for place, again in copied.items():
            for start in range(0, len(again), PART_BLOCKS):
                yield _copied(again[start : start + PART_BLOCKS], place)
        for gone, place in ((links, LINKS), (list(self._left), LEFT)):
            there = [block for block in gone if place == LEFT or first[BlockHash(block)][0] == LINKS]
            for start in range(0, len(there), PART_BLOCKS):
                yield BlocksRemoved(there[start : start + PART_BLOCKS], *place)

    def _groups(self) -> Iterator[KvEvent]:
        """Of which kinds they are, where no run tells, and what those beside full attention have."""
        held = {place[1] for place, names in self._places.items() if names}
        if not all(group in held and self._is_alone(group) for group in self._kinds):
            yield from (self._grouped([], (GPU, group)) for group in self._kinds)
        for place, names in self._others.items():
            again = [name for name, count in names.items() for _ in range(count)]
            for start in range(0, len(again), PART_BLOCKS):
                yield self._grouped(again[start : start + PART_BLOCKS], place)

    def _paths(self) -> Iterator[list[BlockHash]]:
        """Every block once, in runs whose parents come before them: from the youngest up, so that runs
        are long."""
        told: set[BlockHash] = set()
        for block in reversed(self._parents):
            path: list[BlockHash] = []
            while block in self._parents and block not in told:
                path.append(block)
                block = self._parents[block]
            if path:
                told.update(path)
                yield path[::-1]

    def _runs(self, path: list[BlockHash], first: dict[BlockHash, tuple[Place, int]]) -> Iterator[RunStored]:
        start = 0
        while start < len(path):
            place, end = first[path[start]][0], start + 1
            while end < min(len(path), start + PART_BLOCKS) and first[path[end]][0] == place:
                end += 1
            blocks = path[start:end]
            names = [first[block][1] for block in blocks]
            yield RunStored(blocks, names, *self._behind(blocks[0], first), *place)
            start = end

    def _behind(
        self, block: BlockHash, first: dict[BlockHash, tuple[Place, int]]
    ) -> tuple[int | None, BlockHash]:
        before = self._parents[block]
        return (first[before][1] if before in first else None), before


def _copied(names: list[int], place: Place) -> BlocksStored:
    """Under names that are known: a store without tokens."""
    return BlocksStored(names, None, _NO_TOKENS, 0, None, *place, "full_attention")
