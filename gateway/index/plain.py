"""The plain index: two dicts, right by inspection, and so the oracle of the packed one (`memory.py`).

    masks    block hash -> bit mask of the workers that hold it
    places   per worker: (medium, group) -> engine hash -> block hash, for parents and removals

A prompt's lookup walks its hashes from the first and ands the masks: a worker's overlap is where
its bit falls out. Counts are kept only where they differ from one: an engine may hold a block in
several physical copies and removes each under the same hash.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.core.blocks import BlockHash, hash_blocks
from gateway.core.events import (
    GPU,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    KvEvent,
    RunStored,
    UnknownEvent,
)
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, is_prefix_group
from gateway.index.masks import HolderMasks

Place: TypeAlias = tuple[str, int]
"""(medium, group): where a copy lies; engine hashes are counted per place."""

_ANYWHERE: Place = ("", -1)
"""Under this place the names of one block hash are counted."""


@dataclass(slots=True, eq=False)
class _Holder:
    """One worker's blocks. `copies` holds only counts over one; `places[p][e]` is our hash."""

    bit: int
    root: BlockHash
    block_size: int | None
    places: dict[Place, dict[EngineHash, BlockHash]] = field(default_factory=dict)
    copies: dict[tuple[Place, EngineHash], int] = field(default_factory=dict)
    num_blocks: int = 0
    applied: Applied = field(default_factory=Applied)

    def by_medium(self) -> dict[str, set[BlockHash]]:
        blocks: dict[str, set[BlockHash]] = {}
        for (medium, _), names in self.places.items():
            blocks.setdefault(medium, set()).update(names.values())
        return blocks


class PlainIndex:
    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Holder] = {}
        self._masks = HolderMasks()

    def __repr__(self) -> str:
        return f"PlainIndex(workers={len(self._workers)}, blocks={len(self._masks)})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        self._workers[worker] = _Holder(self._masks.take_bit(worker), root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        if worker in self._workers:
            self.reset_worker(worker)
            self._masks.free_bit(self._workers.pop(worker).bit)

    def reset_worker(self, worker: WorkerId) -> None:
        holder = self._workers[worker]
        for names in holder.places.values():
            for block in names.values():
                self._release(holder, block)
        holder.places.clear()
        holder.copies.clear()

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
                holder.applied.num_unknown_events += 1

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        return self._masks.walk(hashes)

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        found = {}
        for worker, depth in self.overlap(hashes).items():
            leading, blocks = set(hashes[:depth]), self._workers[worker].by_medium()
            counts = {medium: len(leading & held) for medium, held in blocks.items()}
            found[worker] = {medium: count for medium, count in counts.items() if count}
        return found

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        return worker in self._workers and self.overlap(hashes).get(worker, 0) == len(hashes)

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        return self._find(self._workers[worker], name)

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        yield from set().union(*self._workers[worker].by_medium().values())

    def sweep(self) -> bool:
        return False

    def num_blocks(self, worker: WorkerId) -> int:
        return self._workers[worker].num_blocks

    def applied(self, worker: WorkerId) -> Applied:
        return self._workers[worker].applied

    # events ------------------------------------------------------------------------------------

    def _store(self, holder: _Holder, event: BlocksStored) -> None:
        if not is_prefix_group(event.group_idx, event.spec_kind):
            return
        if not event.tokens and len(event.engine_hashes) > 0:
            return self._store_by_name(holder, event)
        parent = self._parent(holder, event)
        if parent is None:
            holder.applied.num_orphans += len(event.engine_hashes)
            return
        size = event.block_size
        num = len(event.engine_hashes)
        if size < 1 or len(event.tokens) != size * num or (holder.block_size or size) != size:
            holder.applied.num_mismatched += 1
            return
        hashes = hash_blocks(event.tokens, size, parent, event.extra_keys)
        place = (event.medium, event.group_idx)
        for name, block in zip(event.engine_hashes, hashes, strict=True):
            self._hold(holder, place, name, block)

    def _store_run(self, holder: _Holder, event: RunStored) -> None:
        if self._parent(holder, event) != event.before:
            holder.applied.num_orphans += len(event.blocks)
        elif len(event.blocks) != len(event.engine_hashes):
            holder.applied.num_mismatched += 1
        else:
            for name, block in zip(event.engine_hashes, event.blocks, strict=True):
                self._hold(holder, (event.medium, event.group_idx), name, block)

    def _store_by_name(self, holder: _Holder, event: BlocksStored) -> None:
        """An offload tier's store without tokens: the engine hash was stored elsewhere before."""
        place = (event.medium, event.group_idx)
        for name in event.engine_hashes:
            block = self._find(holder, name)
            if block is None:
                holder.applied.num_orphans += 1
            else:
                self._hold(holder, place, name, block)

    def _parent(self, holder: _Holder, event: BlocksStored | RunStored) -> BlockHash | None:
        if event.parent is None:
            return holder.root
        return self._find(holder, event.parent)

    def _find(self, holder: _Holder, name: EngineHash) -> BlockHash | None:
        for names in holder.places.values():
            if (block := names.get(name)) is not None:
                return block
        return None

    def _hold(self, holder: _Holder, place: Place, name: EngineHash, block: BlockHash) -> None:
        names = holder.places.setdefault(place, {})
        holder.applied.num_stored += 1
        if name in names:
            holder.copies[place, name] = holder.copies.get((place, name), 1) + 1
            return
        names[name] = block
        if self._masks.add(block, holder.bit):
            holder.num_blocks += 1
            return
        key = (_ANYWHERE, block)  # the same block at another place or under another engine hash
        holder.copies[key] = holder.copies.get(key, 1) + 1

    def _remove(self, holder: _Holder, event: BlocksRemoved) -> None:
        place = (event.medium, event.group_idx)
        names = holder.places.get(place, {})
        for name in event.engine_hashes:
            if name not in names:
                holder.applied.num_unknown_removals += 1
                continue
            holder.applied.num_removed += 1
            if not _one_less(holder.copies, (place, name)):
                self._release(holder, names.pop(name))

    def _release(self, holder: _Holder, block: BlockHash) -> None:
        """One name of a block is gone; the block itself with its last name."""
        if not _one_less(holder.copies, (_ANYWHERE, block)):
            self._masks.remove(block, holder.bit)
            holder.num_blocks -= 1

    def _clear(self, holder: _Holder) -> None:
        """The engine's own cache is empty; offload tiers keep theirs."""
        for place in [place for place in holder.places if place[0] == GPU]:
            for name, block in holder.places.pop(place).items():
                holder.copies.pop((place, name), None)
                self._release(holder, block)


def _one_less(copies: dict[tuple[Place, EngineHash], int], key: tuple[Place, EngineHash]) -> bool:
    """Count one copy less; False if it was the last."""
    left = copies.get(key, 1) - 1
    if left == 0:
        return False
    if left == 1:
        del copies[key]
    else:
        copies[key] = left
    return True
