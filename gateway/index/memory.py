"""The index of one process: a prefix tree with packed edges.

    edges    (edges.py)    runs of blocks; a prompt is looked up by walking them, all workers at once
    holders  (holder.py)   per worker: engine hash ─► block, and what lies outside the GPU
    names    (names.py)    the packed table behind that

A block costs 8 bytes however many workers hold it, and 13 for the engine hash at each; `plain.py` says
the same in two dicts and is the oracle of the tests. A worker is a bit. Forgetting one gives it a new
bit, so that nobody sees the old one any more; `sweep` then takes the old bits off the edges, a few
milliseconds at a time, and bits are used again.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

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
from gateway.index.base import Applied, Losses, is_prefix_group
from gateway.index.edges import POSITION_BITS, Edges
from gateway.index.holder import Holder, Place
from gateway.index.names import name_of, names_of

Key = TypeVar("Key", bound=Hashable)

SWEEP_EDGES = 500
SWEEP_BUCKETS = 1_000


class MemoryIndex:
    def __init__(self, losses: Losses | None = None) -> None:
        self._losses = losses
        self._edges = Edges()
        self._holders: dict[WorkerId, Holder] = {}
        self._by_bit: dict[int, WorkerId] = {}
        self._live = 0  # bits of workers that are known
        self._retired = 0  # bits to be swept in the next pass
        self._swept = 0  # bits that this pass takes off, from edge number `_next_edge` on
        self._next_edge = 0
        self._waste: list[list[bytearray]] = []  # names of workers that are forgotten

    def __repr__(self) -> str:
        return f"MemoryIndex(workers={len(self._holders)}, blocks={self._edges.num_blocks})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        self._holders[worker] = Holder(self._take_bit(worker), root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        if (holder := self._holders.pop(worker, None)) is not None:
            self._retire(worker, holder)

    def reset_worker(self, worker: WorkerId) -> None:
        old = self._holders[worker]
        self._retire(worker, old)
        self._holders[worker] = Holder(self._take_bit(worker), old.root, old.block_size, applied=old.applied)

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        holder = self._holders[worker]
        match event:
            case BlocksStored():
                self._store(holder, event)
            case RunStored():
                self._store_run(holder, event)
            case BlocksRemoved():
                self._remove(holder, event)
            case BlocksCleared():
                self._clear(worker, holder)
            case UnknownEvent():
                holder.applied.num_unknown_events += 1

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        found: dict[WorkerId, int] = {}
        for workers, depth in self._edges.walk(hashes, self._live):
            while workers:
                bit = workers & -workers
                found[self._by_bit[bit]] = depth
                workers ^= bit
        return found

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        return {worker: self._media(worker, hashes[:depth]) for worker, depth in self.overlap(hashes).items()}

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        holder = self._holders.get(worker)
        if holder is None or not hashes:
            return holder is not None
        return self._edges.walk(hashes, holder.bit) == [(holder.bit, len(hashes))]

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        block = self._holders[worker].find(name_of(name))
        return None if block is None else self._edges.hash_at(block)

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        places = self._holders[worker].places.values()
        for block in set().union(*(names.numbers() for names in places)):
            yield self._edges.hash_at(block)

    def num_blocks(self, worker: WorkerId) -> int:
        return self._holders[worker].num_blocks

    def applied(self, worker: WorkerId) -> Applied:
        return self._holders[worker].applied

    def sweep(self) -> bool:
        if self._waste:
            del self._waste[-1][-SWEEP_BUCKETS:]
            if not self._waste[-1]:
                self._waste.pop()
            return True
        if not self._swept:
            self._swept, self._retired, self._next_edge = self._retired, 0, 0
            return self._swept != 0
        if self._losses is not None:
            for blocks in self._edges.held_by(self._swept, self._next_edge, SWEEP_EDGES):
                self._losses.forget(blocks)
        if not self._edges.forget(self._swept, self._next_edge, SWEEP_EDGES):
            self._swept = 0
        self._next_edge += SWEEP_EDGES
        return True

    # events ------------------------------------------------------------------------------------

    def _store(self, holder: Holder, event: BlocksStored) -> None:
        if not is_prefix_group(event.group_idx, event.spec_kind):
            return
        num, size = len(event.engine_hashes), event.block_size
        if not event.tokens and num:
            return self._store_by_name(holder, event)
        parent = None
        if event.parent is not None and (parent := holder.find(name_of(event.parent))) is None:
            holder.applied.num_orphans += num
            return
        if size < 1 or len(event.tokens) != size * num or (holder.block_size or size) != size:
            holder.applied.num_mismatched += 1
            return
        before = holder.root if parent is None else self._edges.hash_at(parent)
        hashes = hash_blocks(event.tokens, size, before, event.extra_keys)
        self._place(holder, names_of(event.engine_hashes), hashes, parent, (event.medium, event.group_idx))

    def _store_run(self, holder: Holder, event: RunStored) -> None:
        """Hashed by another. Only behind its own parent: a block that is in the tree twice is found once."""
        parent = None if event.parent is None else holder.find(name_of(event.parent))
        before = holder.root if parent is None else self._edges.hash_at(parent)
        if before != event.before or (parent is None and event.parent is not None):
            holder.applied.num_orphans += len(event.blocks)
            return
        if len(event.blocks) != len(event.engine_hashes):
            holder.applied.num_mismatched += 1
            return
        names, place = names_of(event.engine_hashes), (event.medium, event.group_idx)
        self._place(holder, names, event.blocks, parent, place)

    def _place(
        self,
        holder: Holder,
        names: Sequence[int],
        hashes: Sequence[BlockHash],
        parent: int | None,
        place: Place,
    ) -> None:
        num, done = len(names), 0
        holder.applied.num_stored += num
        for first, count, held in self._edges.store(holder.bit, hashes, parent):
            holder.num_blocks += count - held.bit_count()
            self._hold(holder, place, names[done : done + count] if count < num else names, first, held)
            done += count

    def _store_by_name(self, holder: Holder, event: BlocksStored) -> None:
        """An offload tier's store without tokens: the engine hash was stored elsewhere before."""
        place = (event.medium, event.group_idx)
        for name in names_of(event.engine_hashes):
            block = holder.find(name)
            if block is None:
                holder.applied.num_orphans += 1
            else:
                holder.applied.num_stored += 1
                self._hold(holder, place, (name,), block, 1)

    def _hold(self, holder: Holder, place: Place, names: Sequence[int], first: int, held: int) -> None:
        """Consecutive blocks are held at a place; `held` tells which were held before, at any."""
        there = holder.at(place)
        medium = place[0]
        here = holder.in_medium(medium, first, held)
        if not here:
            there.add(names, first)
        else:
            for i, name in enumerate(names):
                if not here >> i & 1:
                    there.add((name,), first + i)
                elif there.find(name) is not None:
                    _one_more(holder.copies, (place, name))
                else:
                    there.add((name,), first + i)
                    _one_more(holder.names, (medium, first + i))
        if medium != GPU or holder.off_gpu:
            holder.enter(medium, first, (1 << len(names)) - 1, held)

    def _remove(self, holder: Holder, event: BlocksRemoved) -> None:
        medium, place = event.medium, (event.medium, event.group_idx)
        there = holder.at(place)
        for name in names_of(event.engine_hashes):
            if holder.copies and _one_less(holder.copies, (place, name)):
                holder.applied.num_removed += 1
                continue
            block = there.pop(name)
            if block is None:
                holder.applied.num_unknown_removals += 1
                continue
            holder.applied.num_removed += 1
            if holder.names and _one_less(holder.names, (medium, block)):
                continue
            if holder.leave(medium, block):
                holder.num_blocks -= 1
                if self._losses is not None:
                    self._losses.evict(self._edges.hash_at(block))
                self._edges.release(holder.bit, block)

    def _clear(self, worker: WorkerId, holder: Holder) -> None:
        """The engine's own cache is empty; offload tiers keep theirs."""
        if self._losses is not None:
            self._losses.end(worker)
        self._retire_bit(holder.bit)
        holder.bit = self._take_bit(worker)
        self._waste += [names.buckets for names in holder.clear_gpu()]
        for number, blocks in holder.off_gpu.items():
            self._edges.grant(holder.bit, number, blocks)

    def _media(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> dict[str, int]:
        """Of blocks that it holds, how many in which medium."""
        holder = self._holders[worker]
        if not holder.spill:
            return {GPU: len(hashes)}
        counts = dict.fromkeys((GPU, *holder.spill), 0)
        for number, num in self._edges.along(hashes):
            span = (1 << num) - 1
            for medium in counts:
                counts[medium] += holder.in_medium(medium, number << POSITION_BITS, span).bit_count()
        return {medium: count for medium, count in counts.items() if count}

    # bits --------------------------------------------------------------------------------------

    def _take_bit(self, worker: WorkerId) -> int:
        """The lowest that is free, so that masks stay small integers."""
        free = ~(self._live | self._retired | self._swept)
        bit = free & -free
        self._by_bit[bit] = worker
        self._live |= bit
        return bit

    def _retire_bit(self, bit: int) -> None:
        self._live ^= bit
        self._retired |= bit
        del self._by_bit[bit]

    def _retire(self, worker: WorkerId, holder: Holder) -> None:
        if self._losses is not None:
            self._losses.end(worker)
        self._retire_bit(holder.bit)
        self._waste += [names.buckets for names in holder.places.values()]


def _one_more(counts: dict[Key, int], key: Key) -> None:
    """Counts of one are not written down."""
    counts[key] = counts.get(key, 1) + 1


def _one_less(counts: dict[Key, int], key: Key) -> bool:
    """Count one less; False if it was the last."""
    left = counts.get(key, 1) - 1
    if left == 0:
        return False
    if left == 1:
        del counts[key]
    else:
        counts[key] = left
    return True
