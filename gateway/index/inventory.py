"""Inventory of one worker's blocks, as its agent keeps it: for publication, never looked up.

    parents   block ─► the block before it        all that is held, and what lies before it
    tiers     (medium, group) ─► key ─► block     what each engine hash means there
    copies    (tier, key) ─► count                only where it is not 1
    aliases   block ─► count of engine hashes     only where it is not 1; 0: not held, a link to its children
    children  block ─► count                      only where it is not 1
    removed   key ─► block                        removed, and an offload tier may refer to it once more
    others    (medium, group) ─► key ─► count     of groups beside full attention, that followers join

Consumes engines' events as an index does, and returns the effect of each: the same in our hashes, for
followers to apply. A snapshot consists of the same events and begins with an empty worker. A block that was
evicted before its children (holes are real) stays as long as it has some: a follower that shares its tree
between workers must know where they belong.

Costs about 200 bytes a block: an agent has one worker, where a gateway has hundreds.
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
from gateway.index.base import LEFT, MAX_REMOVED, TIER_COST, Applied, is_prefix_group
from gateway.index.base import LINKS as LINK_GROUP
from gateway.index.engine_hashes import key_of, keys_of
from gateway.index.followed_tiers import FollowedTiers
from gateway.index.holder import one_less
from gateway.index.kv_groups import is_followed

Tier: TypeAlias = tuple[str, int]
Kind: TypeAlias = tuple[str, int, int | None]
"""(kind, tokens per block, tokens of the window) of a group."""

LINKS: Tier = (GPU, LINK_GROUP)
"""Pseudo tier of a snapshot for blocks that are not held and have children that are, until its end. Each is
named by its own hash there."""
REMOVED: Tier = ("LEFT", LEFT)
"""Pseudo tier of a snapshot for the blocks of `removed`, under their engine hashes: followers that remove
them remember them too. A store of none says that the worker has had offload tiers, which may be empty now."""
PART_BLOCKS = 1024
"""Blocks per event of a snapshot, as in `ingest/chunks.py`: applied by a follower in a millisecond or two."""

SAMPLED_FROM = 1000
"""Blocks at each end of the table from which samples start: going further into it takes time."""

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
        self._tiers: dict[Tier, dict[int, BlockHash]] = {}
        self._copies: dict[tuple[Tier, int], int] = {}
        self._aliases: dict[BlockHash, int] = {}
        self._children: dict[BlockHash, int] = {}
        self._removed: OrderedDict[int, BlockHash] = OrderedDict()
        self._has_tiers = False
        self._followed = FollowedTiers()
        self._others: dict[Tier, dict[int, int]] = {}
        self._kinds: dict[int, Kind] = {}
        self.num_links = 0

    @property
    def num_blocks(self) -> int:
        return len(self._parents) - self.num_links

    def blocks(self) -> Iterator[BlockHash]:
        """Iterate over the held blocks, each once; the inventory must not change meanwhile."""
        return (block for block in self._parents if self._aliases.get(block, 1))

    def num_kept(self, on_gpu: bool) -> int:
        num = sum(len(n) for p, n in self._tiers.items() if (p[0] == GPU) is on_gpu and p != LINKS)
        num += sum(len(names) for tier, names in self._others.items() if (tier[0] == GPU) is on_gpu)
        return num + len(self._copies) + TIER_COST * (len(self._tiers) + len(self._kinds))

    def leading(self, blocks: Sequence[BlockHash]) -> int:
        """Count the leading blocks of a prompt that are held."""
        parents, names = self._parents, self._aliases
        return sum(1 for _ in takewhile(lambda block: block in parents and names.get(block, 1), blocks))

    def find(self, name: EngineHash) -> BlockHash | None:
        return self._find(key_of(name))

    @property
    def has_groups(self) -> bool:
        """Return True if there are groups beside one of full attention."""
        return not all(map(self._is_alone, self._kinds))

    def proven(self) -> Iterator[BlocksRemoved]:
        """Yield the events that remove all blocks proven under our own hashes (`proofs.py`)."""
        here = self._tiers.get(LINKS, {})
        names = [name for name in here for _ in range(self._copies.get((LINKS, name), 1))]
        for start in range(0, len(names), PART_BLOCKS):
            yield BlocksRemoved(names[start : start + PART_BLOCKS], *LINKS)

    def sample(self, rng: random.Random) -> list[BlockHash]:
        """Return the held prefix that ends at one of the oldest or youngest blocks."""
        ends = (iter, reversed)[rng.randrange(2)](self._parents)
        start = rng.randrange(min(len(self._parents), SAMPLED_FROM)) if self._parents else 0
        block, line = next(islice(ends, start, None), None), list[BlockHash]()
        while block is not None and block in self._parents:
            line.append(block)
            block = self._parents[block]
        return list(takewhile(lambda held: self._aliases.get(held, 1), reversed(line)))[:PART_BLOCKS]

    def apply(self, event: KvEvent) -> list[KvEvent]:
        """Apply an event; returns its effect as events for followers, none where it concerns no prefix or
        cannot be placed."""
        match event:
            case BlocksStored() | RunStored() | BlocksRemoved() if not self._followed.follow(
                event.medium, event.group_idx
            ):
                self.applied.num_unknown_events += 1
            case BlocksStored():
                return self._stored(event)
            case RunStored():
                return self._store_run(event)
            case BlocksRemoved():
                return self._remove(event)
            case BlocksCleared():
                return self._clear(event)
            case UnknownEvent():
                self.applied.unknown(event)
        return []

    # events ------------------------------------------------------------------------------------

    def _learn(self, group: int, kind: Kind) -> list[KvEvent]:
        """Learn a group's kind; returns the events that announce groups, unless a lone full-attention group's
        runs do."""
        if group in self._kinds or group < 0:
            return []
        self._kinds[group] = kind
        groups = self._kinds if len(self._kinds) == 2 else () if self._is_alone(group) else [group]
        return [self._grouped([], (GPU, each)) for each in groups]

    def _is_alone(self, group: int) -> bool:
        return len(self._kinds) == 1 and is_prefix_group(group, self._kinds[group][0])

    def _stored(self, event: BlocksStored) -> list[KvEvent]:
        group, kind = event.group_idx, event.spec_kind
        known = self._kinds[group][0] if group in self._kinds else None
        if is_prefix_group(group, kind or known):
            effect = self._store(event) if event.tokens else self._copy(event)
            full = ("full_attention", self.block_size, None)
            return [*self._learn(group, full), *effect] if effect or not event.engine_hashes else []
        news = self._learn(group, (kind, event.block_size, event.window)) if kind else []
        return [*news, *self._store_other(event)]

    def _store_other(self, event: BlocksStored) -> list[KvEvent]:
        names = keys_of(event.engine_hashes)
        self.applied.num_stored += len(names)
        kind, size, _ = self._kinds.get(event.group_idx, (None, 0, None))
        if not is_followed(kind, size, self.block_size):
            return []
        tier = (event.medium, event.group_idx)
        here = self._others.setdefault(tier, {})
        for name in names:
            here[name] = 1 if SHARED in tier[0] else here.get(name, 0) + 1
        return [self._grouped(names, tier)]

    def _grouped(self, names: Sequence[int], tier: Tier) -> BlocksStored:
        kind, size, window = self._kinds[tier[1]]
        return BlocksStored(names, None, _NO_TOKENS, size or self.block_size, None, *tier, kind, window)

    def _store(self, event: BlocksStored) -> list[KvEvent]:
        names, size = keys_of(event.engine_hashes), event.block_size
        parent = None if event.parent is None else key_of(event.parent)
        before = self.root if parent is None else self._find(parent)
        if before is None:
            self.applied.orphaned(event.medium, len(names))
            return []
        if size != self.block_size or len(event.tokens) != size * len(names):
            self.applied.mismatched(event, self.block_size)
            return []
        blocks = hash_blocks(event.tokens, size, before, event.extra_keys)
        tier, last = (event.medium, event.group_idx), before
        for name, block in zip(names, blocks, strict=True):
            self._hold(tier, name, block, last)
            last = block
        return [RunStored(blocks, names, parent, before, *tier)] if blocks else []

    def _store_run(self, event: RunStored) -> list[KvEvent]:
        """Store a run of another inventory that this one succeeds, or of `blind_recovery.py`."""
        names = keys_of(event.engine_hashes)
        parent = None if event.parent is None else key_of(event.parent)
        before = self.root if parent is None else self._find(parent)
        if before != event.before or len(event.blocks) != len(names):
            self.applied.orphaned(event.medium, len(names))
            return []
        tier, last = (event.medium, event.group_idx), event.before
        self._learn(event.group_idx, ("full_attention", self.block_size, None))
        for name, block in zip(names, event.blocks, strict=True):
            self._hold(tier, name, block, last)
            last = block
        return [RunStored(event.blocks, names, parent, event.before, *tier)]

    def _copy(self, event: BlocksStored) -> list[KvEvent]:
        """Store blocks of an offload tier without tokens: the engine hash was stored elsewhere before."""
        tier, changed = (event.medium, event.group_idx), list[int]()
        self._has_tiers |= tier == REMOVED
        for name in keys_of(event.engine_hashes):
            block = self._find(name)
            if block is None:
                self.applied.orphaned(event.medium, 1)
            else:
                self._hold(tier, name, block, self._parents[block])
                changed.append(name)
        return [_copied(changed, tier)] if changed else []

    def _remove(self, event: BlocksRemoved) -> list[KvEvent]:
        tier = (event.medium, event.group_idx)
        here, others, changed = self._tiers.get(tier, {}), self._others.get(tier, {}), list[int]()
        for name in keys_of(event.engine_hashes):
            if name in here:
                if not one_less(self._copies, (tier, name)):
                    block = here.pop(name)
                    if tier != LINKS:
                        self._remember_removed(name, block)
                    self._release(block)
            elif name in others:
                others[name] -= 1
                if not others[name]:
                    del others[name]
            else:
                self.applied.num_unknown_removals += 1
                continue
            changed.append(name)
        self.applied.num_removed += len(changed)
        return [BlocksRemoved(changed, *tier)] if changed else []

    def _clear(self, event: BlocksCleared) -> list[KvEvent]:
        """Drop all GPU blocks (the engine cleared its own cache); offload tiers keep theirs."""
        for tier in [tier for tier in self._tiers if tier[0] == GPU]:
            for name, block in self._tiers.pop(tier).items():
                self._copies.pop((tier, name), None)
                self._release(block)
        for tier in [tier for tier in self._others if tier[0] == GPU]:
            del self._others[tier]
        return [event]

    # the tree ----------------------------------------------------------------------------------

    def _find(self, name: int) -> BlockHash | None:
        for names in self._tiers.values():
            if (block := names.get(name)) is not None:
                return block
        return self._removed.get(name)

    def _hold(self, tier: Tier, name: int, block: BlockHash, before: BlockHash) -> None:
        self.applied.num_stored += 1
        self._has_tiers |= tier[0] != GPU
        here = self._tiers.setdefault(tier, {})
        if name in here:
            if SHARED not in tier[0]:  # a shared tier has one copy, however many workers store it
                self._copies[tier, name] = self._copies.get((tier, name), 1) + 1
            return
        here[name] = block
        if block in self._parents:
            was_link = self._add(self._aliases, block, 1) == 1
            self.num_links -= was_link
            self._forget_removed(name)
            return
        self._parents[block] = before
        self._children[block] = 0
        if before in self._parents:
            self._add(self._children, before, 1)

    def _release(self, block: BlockHash) -> None:
        """Drop one engine hash of a block; the block goes with its last one, and so do links that only led to
        it."""
        if self._add(self._aliases, block, -1):
            return
        self.num_links += 1
        self._prune(block)

    def _prune(self, block: BlockHash) -> None:
        while not self._aliases.get(block, 1) and not self._children.get(block, 1):
            before = self._parents.pop(block)
            del self._aliases[block], self._children[block]
            self.num_links -= 1
            if before not in self._parents:
                break
            self._add(self._children, before, -1)
            block = before

    def _remember_removed(self, name: int, block: BlockHash) -> None:
        """Remember a block if its engine hash is gone from the last tier; the entry keeps the block as a
        child would."""
        if not self._has_tiers or self._find(name) is not None:
            return
        self._removed[name] = block
        self._add(self._children, block, 1)
        if len(self._removed) > MAX_REMOVED:
            self._forget_removed(next(iter(self._removed)))

    def _forget_removed(self, name: int) -> None:
        if (block := self._removed.pop(name, None)) is not None:
            self._add(self._children, block, -1)
            self._prune(block)

    @staticmethod
    def _add(counts: dict[BlockHash, int], block: BlockHash, num: int) -> int:
        """Add to a count; counts of one are not stored."""
        count = counts.pop(block, 1) + num
        if count != 1:
            counts[block] = count
        return count

    # snapshot ----------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[KvEvent]:
        """Yield events that rebuild this inventory in an empty worker: runs from the root outwards, further
        engine hashes and copies, last the removal of all links. The inventory must not change meanwhile."""
        first: dict[BlockHash, tuple[Tier, int]] = {}
        others: list[tuple[Tier, int, BlockHash]] = []
        for tier, names in self._tiers.items():
            for name, block in names.items():
                if first.setdefault(block, (tier, name)) != (tier, name):
                    others.append((tier, name, block))
        links = [block for block, count in self._aliases.items() if not count]
        first.update((block, (LINKS, block)) for block in links)
        first.update(
            (block, (REMOVED, name))
            for name, block in self._removed.items()
            if not self._aliases.get(block, 1)
        )
        others += [
            (REMOVED, name, block) for name, block in self._removed.items() if first[block] != (REMOVED, name)
        ]
        yield from self._groups()
        if self._has_tiers:
            yield _copied([], REMOVED)
        for path in self._paths():
            yield from self._runs(path, first)
        copied: dict[Tier, list[int]] = {}
        for tier, name, block in others:
            if first[block][1] == name:
                copied.setdefault(tier, []).append(name)
            else:
                yield RunStored([block], [name], *self._behind(block, first), *tier)
        for (tier, name), count in self._copies.items():
            copied.setdefault(tier, []).extend([name] * (count - 1))
        for tier, again in copied.items():
            for start in range(0, len(again), PART_BLOCKS):
                yield _copied(again[start : start + PART_BLOCKS], tier)
        for gone, tier in ((links, LINKS), (list(self._removed), REMOVED)):
            there = [block for block in gone if tier == REMOVED or first[BlockHash(block)][0] == LINKS]
            for start in range(0, len(there), PART_BLOCKS):
                yield BlocksRemoved(there[start : start + PART_BLOCKS], *tier)

    def _groups(self) -> Iterator[KvEvent]:
        """Yield the kinds of groups, where runs do not imply them, and the blocks of those beside full
        attention."""
        held = {tier[1] for tier, names in self._tiers.items() if names}
        if not all(group in held and self._is_alone(group) for group in self._kinds):
            yield from (self._grouped([], (GPU, group)) for group in self._kinds)
        for tier, names in self._others.items():
            again = [name for name, count in names.items() for _ in range(count)]
            for start in range(0, len(again), PART_BLOCKS):
                yield self._grouped(again[start : start + PART_BLOCKS], tier)

    def _paths(self) -> Iterator[list[BlockHash]]:
        """Yield every block once, in long runs (from the youngest up) that come after their parents."""
        seen: set[BlockHash] = set()
        for block in reversed(self._parents):
            path: list[BlockHash] = []
            while block in self._parents and block not in seen:
                path.append(block)
                block = self._parents[block]
            if path:
                seen.update(path)
                yield path[::-1]

    def _runs(self, path: list[BlockHash], first: dict[BlockHash, tuple[Tier, int]]) -> Iterator[RunStored]:
        start = 0
        while start < len(path):
            tier, end = first[path[start]][0], start + 1
            while end < min(len(path), start + PART_BLOCKS) and first[path[end]][0] == tier:
                end += 1
            blocks = path[start:end]
            names = [first[block][1] for block in blocks]
            yield RunStored(blocks, names, *self._behind(blocks[0], first), *tier)
            start = end

    def _behind(
        self, block: BlockHash, first: dict[BlockHash, tuple[Tier, int]]
    ) -> tuple[int | None, BlockHash]:
        before = self._parents[block]
        return (first[before][1] if before in first else None), before


def _copied(names: list[int], tier: Tier) -> BlocksStored:
    """Return a store without tokens, under engine hashes that are known."""
    return BlocksStored(names, None, _NO_TOKENS, 0, None, *tier, "full_attention")
