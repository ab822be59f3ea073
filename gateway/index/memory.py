"""The index of one process: a prefix tree with packed edges.

    edges    (edges.py)    runs of blocks; a prompt is looked up by walking them, all workers at once
    holders  (holder.py)   per worker: engine hash ─► block, and what lies outside the GPU
    names    (engine_hashes.py)    the packed table behind that

A block costs 8 bytes however many workers hold it, and 13 for the engine hash at each; `reference.py` says
the same in two dicts and is the oracle of the tests. A worker is a bit. Forgetting one gives it a new
bit, so that nobody sees the old one any more; `sweep` then takes the old bits off the edges, a few
milliseconds at a time, and bits are used again. A removed block that an offload tier may still speak of
stays in the tree under a bit that no lookup sees.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from gateway.index.base import FULL_ATTENTION, LINKS, MAX_LEFT, Applied, Holdings, Losses, is_partial
from gateway.index.edges import POSITION_BITS, Edges
from gateway.index.engine_hashes import Names, name_of, names_of
from gateway.index.holder import Holder, Place, one_less, one_more
from gateway.index.kv_groups import Groups
from gateway.index.worker_bits import Bits

_NOWHERE = Names()
_PLAIN = FULL_ATTENTION | {None}

SWEEP_EDGES = 500
SWEEP_BUCKETS = 1_000


class MemoryIndex:
    def __init__(self, losses: Losses | None = None, holdings: Holdings | None = None) -> None:
        self._losses = losses
        self._edges = Edges(holdings)
        self._holders: dict[WorkerId, Holder] = {}
        self._bits = Bits(holdings)
        self._has_tiers = False
        self._bounded: dict[WorkerId, Groups] = {}
        self._sharers: dict[tuple[str, BlockHash, int | None], list[Holder]] = {}  # of a shared tier
        self._next_edge = 0  # of the sweep under way
        self._waste: list[list[bytearray]] = []  # names of workers that are forgotten

    def __repr__(self) -> str:
        return f"MemoryIndex(workers={len(self._holders)}, blocks={self._edges.num_blocks})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        self._holders[worker] = Holder(self._bits.take(worker), root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        if (holder := self._holders.pop(worker, None)) is not None:
            self._retire(worker, holder)

    def reset_worker(self, worker: WorkerId) -> None:
        old = self._holders[worker]
        self._retire(worker, old)
        self._holders[worker] = Holder(self._bits.take(worker), old.root, old.block_size, applied=old.applied)

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        holder = self._holders[worker]
        match event:
            case BlocksStored():
                self._store(worker, holder, event)
            case RunStored():
                self._store_run(worker, holder, event)
            case BlocksRemoved():
                if event.medium != GPU and SHARED in event.medium:
                    for other in self._others(holder, event.medium):
                        self._remove(other, event, Applied())
                self._remove(holder, event, holder.applied)
            case BlocksCleared():
                self._clear(worker, holder)
            case UnknownEvent():
                holder.applied.num_unknown_events += 1

    def tell(self, holding: int) -> None:
        """All that it has, to who is told of holdings, once more."""
        self._edges.tell(holding)

    def overlap(self, hashes: Sequence[BlockHash], most: int | None = None) -> Mapping[WorkerId, int]:
        found: dict[WorkerId, int] = {}
        for workers, depth in self._edges.walk(hashes, self._bits.live):
            while workers:
                bit = workers & -workers
                found[self._bits.workers[bit]] = depth
                workers ^= bit
        if self._bounded:
            self._bound(found, hashes, most)
        return found

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        return {worker: self._media(worker, hashes[:depth]) for worker, depth in self.overlap(hashes).items()}

    def spilled(
        self, hashes: Sequence[BlockHash], held: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        found: dict[WorkerId, Mapping[tuple[str, ...], int]] = {}
        if self._has_tiers:
            for worker, depth in held.items():
                holder = self._holders[worker]
                if holder.off_gpu and (some := holder.spilled(self._edges.along(hashes[:depth]))):
                    found[worker] = some
        return found

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

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        return self._holders[worker].num_kept(on_gpu)

    def sweep(self) -> bool:
        if self._waste:
            del self._waste[-1][-SWEEP_BUCKETS:]
            if not self._waste[-1]:
                self._waste.pop()
            return True
        swept = self._bits.swept
        if not swept:
            self._next_edge = 0
            return self._bits.begin_sweep()
        if self._losses is not None:
            for blocks in self._edges.held_by(swept, self._next_edge, SWEEP_EDGES):
                self._losses.forget(blocks)
        if not self._edges.forget(swept, self._next_edge, SWEEP_EDGES):
            self._bits.swept = 0
        self._next_edge += SWEEP_EDGES
        return True

    # events ------------------------------------------------------------------------------------

    def _store(self, worker: WorkerId, holder: Holder, event: BlocksStored) -> None:
        num, size = len(event.engine_hashes), event.block_size
        if event.group_idx or holder.groups is not None or event.spec_kind not in _PLAIN or not num:
            groups = self._groups(worker, holder)
            if not groups.learn(event.group_idx, event.spec_kind, size, event.window):
                return self._store_other(holder, event)
        if not event.tokens:
            return self._store_by_name(holder, event)
        parent = None
        if event.parent is not None and (parent := holder.find(name_of(event.parent))) is None:
            holder.applied.num_orphans += num
            return
        if size < 1 or len(event.tokens) != size * num or (holder.block_size or size) != size:
            holder.applied.num_mismatched += not is_partial(event, holder.block_size)
            return
        before = holder.root if parent is None else self._edges.hash_at(parent)
        hashes = hash_blocks(event.tokens, size, before, event.extra_keys)
        self._place(holder, names_of(event.engine_hashes), hashes, parent, (event.medium, event.group_idx))

    def _store_run(self, worker: WorkerId, holder: Holder, event: RunStored) -> None:
        """Hashed by another. Only behind its own parent: a block that is in the tree twice is found once."""
        parent = None if event.parent is None else holder.find(name_of(event.parent))
        before = holder.root if parent is None else self._edges.hash_at(parent)
        if before != event.before or (parent is None and event.parent is not None):
            holder.applied.num_orphans += len(event.blocks)
            return
        if len(event.blocks) != len(event.engine_hashes):
            holder.applied.num_mismatched += 1
            return
        if event.group_idx > 0 or (holder.groups is not None and not event.group_idx):
            self._groups(worker, holder)
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
        holder.has_full |= not place[1]
        holder.applied.num_stored += num
        others = self._others(holder, place[0]) if SHARED in place[0] else ()
        for first, count, held in self._edges.store(holder.bit, hashes, parent):
            some = names[done : done + count] if count < num else names
            holder.num_blocks += count - held.bit_count()
            self._hold(holder, place, some, first, held)
            for other in others:
                self._hold_too(other, place, some, first)
            done += count
        if holder.groups is not None:
            self._count(holder, place, names)
            holder.groups.found(names, hashes)

    def _store_by_name(self, holder: Holder, event: BlocksStored) -> None:
        """An offload tier's store without tokens: the engine hash was stored elsewhere before."""
        place = (event.medium, event.group_idx)
        others = self._others(holder, event.medium) if SHARED in event.medium else ()
        for name in names_of(event.engine_hashes):
            block = holder.find(name)
            if block is None:
                holder.applied.num_orphans += 1
                continue
            holder.applied.num_stored += 1
            for other in (holder, *others):
                self._hold_too(other, place, (name,), block)
        if holder.groups is not None and not event.engine_hashes:  # an agent tells what groups there are
            self._count(holder, place, ())

    def _hold_too(self, holder: Holder, place: Place, names: Sequence[int], first: int) -> None:
        """Blocks that are in the tree."""
        held = self._edges.take(holder.bit, first, len(names))
        holder.num_blocks += len(names) - held.bit_count()
        self._hold(holder, place, names, first, held)
        holder.has_full |= not place[1]
        if holder.groups is not None or place[1] > 0:
            self._groups(self._bits.workers[holder.bit], holder)
            self._count(holder, place, names)

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
                elif there.find(name) is None:
                    there.add((name,), first + i)
                    one_more(holder.names, (medium, first + i))
                elif SHARED not in medium:  # what several store there is one
                    one_more(holder.copies, (place, name))
        if medium != GPU or holder.off_gpu:
            holder.enter(medium, first, (1 << len(names)) - 1, held)
            holder.has_tiers = self._has_tiers = True
        if holder.left:
            for name in names:
                self._forget_left(holder, name)

    def _remove(self, holder: Holder, event: BlocksRemoved, applied: Applied) -> None:
        medium, place = event.medium, (event.medium, event.group_idx)
        names = names_of(event.engine_hashes)
        if holder.groups is not None:
            num = holder.groups.remove(place, names)
            if not holder.groups.is_prefix(event.group_idx):
                applied.num_removed += num
                applied.num_unknown_removals += len(names) - num
                return
        there = holder.places.get(place, _NOWHERE)
        for name in names:
            if holder.copies and one_less(holder.copies, (place, name)):
                applied.num_removed += 1
                continue
            block = there.pop(name)
            if block is None:
                applied.num_unknown_removals += 1
                continue
            applied.num_removed += 1
            if holder.has_tiers and event.group_idx != LINKS:
                self._leave(holder, name, block)
            if holder.names and one_less(holder.names, (medium, block)):
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
        self._bits.retire(holder.bit)
        holder.bit = self._bits.take(worker)
        self._waste += [names.buckets for names in holder.clear_gpu()]
        for number, blocks in holder.off_gpu.items():
            self._edges.grant(holder.bit, number, blocks)
        if holder.groups is not None:
            holder.groups.clear()

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

    # what is left of blocks that are gone ------------------------------------------------------

    def _leave(self, holder: Holder, name: int, block: int) -> None:
        """A name is gone from one place: where it was the last, it is remembered for a while."""
        if holder.find(name) is not None:
            return
        if not holder.hidden:
            holder.hidden = self._bits.hide(self._bits.workers[holder.bit])
        if self._edges.take(holder.hidden, block):
            one_more(holder.names, ("", block))
        holder.left[name] = block
        if len(holder.left) > MAX_LEFT:
            self._forget_left(holder, next(iter(holder.left)))

    def _forget_left(self, holder: Holder, name: int) -> None:
        block = holder.left.pop(name, None)
        if block is not None and not one_less(holder.names, ("", block)):
            self._edges.release(holder.hidden, block)

    # groups ------------------------------------------------------------------------------------

    def _groups(self, worker: WorkerId, holder: Holder) -> Groups:
        if holder.groups is None:
            holder.groups = self._bounded[worker] = Groups(holder.block_size)
            if holder.has_full:
                holder.groups.begin(0)
        return holder.groups

    def _count(self, holder: Holder, place: Place, names: Sequence[int]) -> None:
        """Full attention holds these at a place. Of several such groups, each must have a block."""
        groups = holder.groups
        assert groups is not None
        if not groups.begin(place[1]) or groups.num_full != 2:
            return groups.store(place, names, self._hashes_of(holder))
        for known, named in holder.places.items():
            for name, _ in named.items():
                groups.store(known, [name] * holder.copies.get((known, name), 1), self._hashes_of(holder))

    def _store_other(self, holder: Holder, event: BlocksStored) -> None:
        assert holder.groups is not None
        names = names_of(event.engine_hashes)
        holder.applied.num_stored += len(names)
        holder.groups.store((event.medium, event.group_idx), names, self._hashes_of(holder))

    def _hashes_of(self, holder: Holder) -> Callable[[int], BlockHash | None]:
        def find(name: int) -> BlockHash | None:
            block = holder.find(name)
            return None if block is None else self._edges.hash_at(block)

        return find

    def _bound(self, found: dict[WorkerId, int], hashes: Sequence[BlockHash], most: int | None) -> None:
        for worker, groups in self._bounded.items():
            if depth := found.get(worker, 0):
                found[worker] = groups.bound(hashes, depth if most is None else min(depth, most))
                if not found[worker]:
                    del found[worker]

    # shared tiers ------------------------------------------------------------------------------

    def _others(self, holder: Holder, medium: str) -> Sequence[Holder]:
        """Who else reaches what a worker stores in `medium`: those who have spoken of that tier before."""
        sharers = self._sharers.setdefault((medium, holder.root, holder.block_size), [])
        if holder not in sharers:
            for place, names in list(sharers[0].places.items()) if sharers else ():
                if place[0] == medium:
                    for name, block in names.items():
                        self._hold_too(holder, place, (name,), block)
            sharers.append(holder)
        return [other for other in sharers if other is not holder]

    def _retire(self, worker: WorkerId, holder: Holder) -> None:
        if self._losses is not None:
            self._losses.end(worker)
        self._bits.retire(holder.bit)
        self._bits.retire(holder.hidden)
        self._bounded.pop(worker, None)
        for sharers in self._sharers.values():
            if holder in sharers:
                sharers.remove(holder)
        self._waste += [names.buckets for names in holder.places.values()]
