"""Reference index: two dicts, right by inspection; the oracle of the packed index (`memory.py`) in tests.

    masks    block hash -> bit mask of the workers that hold it
    tiers    per worker: (medium, group) -> engine hash -> block hash, for parents and removals

A prompt's lookup walks its hashes from the first and ands the masks: a worker's overlap is where its bit
falls out. Counts are kept only where they differ from one: an engine may hold a block in several physical
copies and removes each under the same hash. Bounds of groups beside full attention are found by trying each
length.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.core.blocks import BlockHash, hash_blocks
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
from gateway.core.worker import WorkerId
from gateway.index.base import FULL_ATTENTION, LEFT, LINKS, MAX_REMOVED, Applied, is_prefix_group
from gateway.index.holder_masks import HolderMasks

Tier: TypeAlias = tuple[str, int]
"""(medium, group): where a copy lies; engine hashes are counted per place."""

_ANYWHERE: Tier = ("", -1)
"""Pseudo tier that counts the engine hashes of one block hash."""


@dataclass(slots=True, eq=False)
class _Holder:
    """Blocks of one worker. `copies` holds only counts over one; `tiers[t][e]` is our hash."""

    bit: int
    root: BlockHash
    block_size: int | None
    tiers: dict[Tier, dict[EngineHash, BlockHash]] = field(default_factory=dict)
    copies: dict[tuple[Tier, EngineHash], int] = field(default_factory=dict)
    num_blocks: int = 0
    applied: Applied = field(default_factory=Applied)
    has_tiers: bool = False
    removed: OrderedDict[EngineHash, BlockHash] = field(default_factory=OrderedDict)
    kinds: dict[int, tuple[str, int, int | None]] = field(default_factory=dict)  # kind, block size, window
    others: dict[Tier, dict[EngineHash, BlockHash | None]] = field(default_factory=dict)

    def is_prefix(self, group: int) -> bool:
        return is_prefix_group(group, self.kinds[group][0] if group in self.kinds else None)

    def begin(self, group: int) -> None:
        """Register a group of full attention that has blocks."""
        if group >= 0:
            self.kinds.setdefault(group, ("full_attention", 0, None))

    def full(self) -> set[int]:
        return {group for group, (kind, _, _) in self.kinds.items() if kind in FULL_ATTENTION}

    def in_group(self, group: int) -> set[BlockHash]:
        held: set[BlockHash | None] = {None}
        for here in (self.tiers, self.others):
            held.update(*(names.values() for tier, names in here.items() if tier[1] == group))
        return {block for block in held if block is not None}

    def fits(self, hashes: Sequence[BlockHash]) -> bool:
        """Return True if a prompt can begin with all of `hashes`, which some group of full attention has."""
        return all(self._has(group, hashes) for group in self.kinds)

    def fits_dropped(self, hashes: Sequence[BlockHash]) -> bool:
        """Return True if a prompt can begin with all of `hashes` but the last, which speculation drops."""
        return all(
            self._has(group, hashes, 1)
            if kind != "mamba"
            else len(hashes) > 1 and self._has(group, hashes[:-1])
            for group, (kind, _, _) in self.kinds.items()
        )

    def _has(self, group: int, hashes: Sequence[BlockHash], num_dropped: int = 0) -> bool:
        kind, size, window = self.kinds[group]
        held = self.in_group(group)
        if kind in FULL_ATTENTION:
            return len(self.full()) < 2 or held.issuperset(hashes)
        ratio, rest = divmod(size or self.block_size or 1, self.block_size or size or 1)
        if kind not in ("sliding_window", "sliding_window_mla", "mamba") or rest:
            return True
        if len(hashes) % ratio:
            return False
        tokens = 1 if kind == "mamba" or not window else max(window - 1, 1)
        num = -(-tokens // (size or self.block_size or 1)) + num_dropped
        return held.issuperset(hashes[ratio - 1 :: ratio][-num:])

    def by_medium(self) -> dict[str, set[BlockHash]]:
        blocks: dict[str, set[BlockHash]] = {}
        for (medium, _), names in self.tiers.items():
            blocks.setdefault(medium, set()).update(names.values())
        return blocks


class ReferenceIndex:
    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Holder] = {}
        self._sharers: list[tuple[str, _Holder]] = []
        self._masks = HolderMasks()

    def __repr__(self) -> str:
        return f"ReferenceIndex(workers={len(self._workers)}, blocks={len(self._masks)})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        self._workers[worker] = _Holder(self._masks.allocate_bit(worker), root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        if worker in self._workers:
            self.reset_worker(worker)
            self._masks.free_bit(self._workers.pop(worker).bit)

    def reset_worker(self, worker: WorkerId) -> None:
        holder = self._workers[worker]
        for names in holder.tiers.values():
            for block in names.values():
                self._release(holder, block)
        for named in (holder.tiers, holder.copies, holder.removed, holder.kinds, holder.others):
            named.clear()
        holder.has_tiers = False
        self._sharers = [(medium, other) for medium, other in self._sharers if other is not holder]

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        holder = self._workers[worker]
        match event:
            case BlocksStored():
                self._store(holder, event)
            case RunStored():
                self._store_run(holder, event)
            case BlocksRemoved():
                self._remove(holder, event)
            case BlocksCleared():
                self._clear(holder)
            case UnknownEvent():
                holder.applied.unknown(event)

    def overlap(
        self, hashes: Sequence[BlockHash], most: int | None = None, *, drops_last: bool = False
    ) -> Mapping[WorkerId, int]:
        found = self._masks.walk(hashes)
        for worker, depth in list(found.items()):
            holder = self._workers[worker]
            if holder.kinds:
                top = depth if most is None else min(depth, most + drops_last)
                fits = holder.fits_dropped if drops_last else holder.fits
                found[worker] = next((i for i in range(top, 0, -1) if fits(hashes[:i])), 0)
                if not found[worker]:
                    del found[worker]
        return found

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        found = {}
        for worker, depth in self.overlap(hashes).items():
            leading, blocks = set(hashes[:depth]), self._workers[worker].by_medium()
            counts = {medium: len(leading & held) for medium, held in blocks.items()}
            found[worker] = {medium: count for medium, count in counts.items() if count}
        return found

    def offloaded(
        self, hashes: Sequence[BlockHash], overlap: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        found: dict[WorkerId, Counter[tuple[str, ...]]] = {}
        for worker, depth in overlap.items():
            media = self._workers[worker].by_medium()
            for block in hashes[:depth]:
                if block not in media.get(GPU, ()):
                    there = tuple(sorted(medium for medium in media if block in media[medium]))
                    found.setdefault(worker, Counter())[there] += 1
        return found

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        return worker in self._workers and self._masks.walk(hashes).get(worker, 0) == len(hashes)

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        return self._find(self._workers[worker], name)

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        yield from set().union(*self._workers[worker].by_medium().values())

    def exclusive(self, first: int, num: int) -> tuple[Mapping[WorkerId, int], bool]:
        holders = Counter(block for worker in self._workers for block in self.blocks(worker))
        return {
            worker: alone
            for worker in self._workers
            if not first and (alone := sum(holders[block] == 1 for block in self.blocks(worker)))
        }, False

    def sweep(self) -> bool:
        return False

    def num_blocks(self, worker: WorkerId) -> int:
        return self._workers[worker].num_blocks

    def applied(self, worker: WorkerId) -> Applied:
        return self._workers[worker].applied

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        holder, num = self._workers[worker], 0
        for tiers in (holder.tiers, holder.others):
            num += sum(
                len(names)
                for (medium, group), names in tiers.items()
                if (medium == GPU) is on_gpu and group != LINKS
            )
        return num

    # events ------------------------------------------------------------------------------------

    def _store(self, holder: _Holder, event: BlocksStored) -> None:
        group, kind = event.group_idx, event.spec_kind
        if group not in holder.kinds and kind is not None and not is_prefix_group(group, kind):
            holder.kinds[group] = (kind, event.block_size, event.window)
        if not (is_prefix_group(group, kind) if kind is not None else holder.is_prefix(group)):
            return self._store_other(holder, event)
        if not event.tokens:
            return self._store_by_name(holder, event)
        parent = self._parent(holder, event)
        if parent is None:
            holder.applied.orphaned(event.medium, len(event.engine_hashes))
            return
        size = event.block_size
        num = len(event.engine_hashes)
        if size < 1 or len(event.tokens) != size * num or (holder.block_size or size) != size:
            holder.applied.mismatched(event, holder.block_size)
            return
        hashes = hash_blocks(event.tokens, size, parent, event.extra_keys)
        self._place(holder, (event.medium, group), event.engine_hashes, hashes)

    def _store_run(self, holder: _Holder, event: RunStored) -> None:
        if self._parent(holder, event) != event.before:
            holder.applied.orphaned(event.medium, len(event.blocks))
        elif len(event.blocks) != len(event.engine_hashes):
            holder.applied.num_mismatched += 1
        else:
            self._place(holder, (event.medium, event.group_idx), event.engine_hashes, event.blocks)

    def _store_other(self, holder: _Holder, event: BlocksStored) -> None:
        """Store blocks of a group that is unknown or not full attention: joined by engine hash."""
        here = holder.others.setdefault((event.medium, event.group_idx), {})
        holder.applied.num_stored += len(event.engine_hashes)
        if not _is_followed(holder.kinds.get(event.group_idx), holder.block_size):
            return
        for name in event.engine_hashes:
            if name in here and SHARED in event.medium:
                continue
            if name in here:
                key = ((event.medium, event.group_idx), name)
                holder.copies[key] = holder.copies.get(key, 1) + 1
            else:
                here[name] = self._find(holder, name)

    def _place(
        self, holder: _Holder, tier: Tier, names: Sequence[EngineHash], blocks: Sequence[BlockHash]
    ) -> None:
        holder.begin(tier[1])
        holder.applied.num_stored += len(names)
        for other in [holder, *self._others(holder, tier[0])]:
            for name, block in zip(names, blocks, strict=True):
                self._hold(other, tier, name, block)
        for here in holder.others.values():
            for name, block in zip(names, blocks, strict=True):
                if name in here and here[name] is None:
                    here[name] = block

    def _store_by_name(self, holder: _Holder, event: BlocksStored) -> None:
        """Store blocks of an offload tier without tokens: the engine hash was stored elsewhere before."""
        if event.group_idx == LEFT and not event.engine_hashes:
            holder.has_tiers = True
            return
        tier = (event.medium, event.group_idx)
        others = self._others(holder, event.medium)
        for name in event.engine_hashes:
            block = self._find(holder, name)
            if block is None:
                holder.applied.orphaned(event.medium, 1)
                continue
            holder.begin(event.group_idx)
            holder.applied.num_stored += 1
            for other in [holder, *others]:
                self._hold(other, tier, name, block)
        if not event.engine_hashes:  # an agent announces its groups so
            holder.begin(event.group_idx)

    def _others(self, holder: _Holder, medium: str) -> list[_Holder]:
        """Return the other workers that reach a shared tier: those with earlier events of it."""
        if SHARED not in medium:
            return []
        key = (holder.root, holder.block_size)
        known = [h for m, h in self._sharers if m == medium and (h.root, h.block_size) == key]
        if holder not in known:
            self._sharers.append((medium, holder))
            for tier, names in list(known[0].tiers.items()) if known else ():
                for name, block in names.items():
                    if tier[0] == medium:
                        self._hold(holder, tier, name, block)
        return [other for other in known if other is not holder]

    def _parent(self, holder: _Holder, event: BlocksStored | RunStored) -> BlockHash | None:
        if event.parent is None:
            return holder.root
        return self._find(holder, event.parent)

    def _find(self, holder: _Holder, name: EngineHash) -> BlockHash | None:
        for names in holder.tiers.values():
            if (block := names.get(name)) is not None:
                return block
        return holder.removed.get(name)

    def _hold(self, holder: _Holder, tier: Tier, name: EngineHash, block: BlockHash) -> None:
        holder.begin(tier[1])
        names = holder.tiers.setdefault(tier, {})
        holder.has_tiers |= tier[0] != GPU
        holder.removed.pop(name, None)
        if name in names:
            if SHARED not in tier[0]:  # a shared tier has one copy, however many workers store it
                holder.copies[tier, name] = holder.copies.get((tier, name), 1) + 1
            return
        names[name] = block
        if self._masks.add(block, holder.bit):
            holder.num_blocks += 1
            return
        key = (_ANYWHERE, block)  # the same block at another place or under another engine hash
        holder.copies[key] = holder.copies.get(key, 1) + 1

    def _remove(self, holder: _Holder, event: BlocksRemoved) -> None:
        tier = (event.medium, event.group_idx)
        for other in self._others(holder, event.medium):
            for name in event.engine_hashes:
                self._remove_one(other, tier, name)
        for name in event.engine_hashes:
            if self._remove_one(holder, tier, name):
                holder.applied.num_removed += 1
            else:
                holder.applied.num_unknown_removals += 1

    def _remove_one(self, holder: _Holder, tier: Tier, name: EngineHash) -> bool:
        is_prefix = holder.is_prefix(tier[1]) or tier[1] < 0
        names: Any = (holder.tiers if is_prefix else holder.others).get(tier, {})
        if name not in names:
            return False
        if not _one_less(holder.copies, (tier, name)):
            block = names.pop(name)
            if is_prefix:
                if tier[1] != LINKS:
                    self._remember_removed(holder, name, block)
                self._release(holder, block)
        return True

    def _remember_removed(self, holder: _Holder, name: EngineHash, block: BlockHash) -> None:
        """Remember a removed block, which an offload tier may still refer to."""
        if holder.has_tiers and self._find(holder, name) is None:
            holder.removed[name] = block
            if len(holder.removed) > MAX_REMOVED:
                holder.removed.popitem(last=False)

    def _release(self, holder: _Holder, block: BlockHash) -> None:
        """Drop one engine hash of a block; the block goes with its last one."""
        if not _one_less(holder.copies, (_ANYWHERE, block)):
            self._masks.remove(block, holder.bit)
            holder.num_blocks -= 1

    def _clear(self, holder: _Holder) -> None:
        """Drop all GPU blocks (the engine cleared its own cache); offload tiers keep theirs."""
        for tier in [tier for tier in holder.tiers if tier[0] == GPU]:
            for name, block in holder.tiers.pop(tier).items():
                holder.copies.pop((tier, name), None)
                self._release(holder, block)
        for tier in [tier for tier in holder.others if tier[0] == GPU]:
            for name in holder.others.pop(tier):
                holder.copies.pop((tier, name), None)


def _one_less(copies: dict[tuple[Tier, EngineHash], int], key: tuple[Tier, EngineHash]) -> bool:
    """Count one copy less; False if it was the last."""
    left = copies.get(key, 1) - 1
    if left == 0:
        return False
    if left == 1:
        del copies[key]
    else:
        copies[key] = left
    return True


def _is_followed(kind: tuple[str, int, int | None] | None, block_size: int | None) -> bool:
    """Return True if a group of this kind bounds a hit."""
    if kind is None or kind[0] not in ("sliding_window", "sliding_window_mla", "mamba"):
        return False
    return not (kind[1] or block_size or 1) % (block_size or kind[1] or 1)
