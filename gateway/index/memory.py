"""Index of one process: a prefix tree with packed edges.

    edges    (edges.py)          runs of blocks; a prompt is looked up by walking them, all workers at once
    holders  (holder.py)         per worker: engine hash ─► block, and what lies outside the GPU
    tables   (engine_hashes.py)  the packed tables of engine hashes behind that

A block costs 8 bytes however many workers hold it, and 13 for the engine hash at each; `reference.py` does
the same with two dicts and is the oracle of the tests. A worker is a bit. Forgetting a worker gives it a new
bit, so that no lookup sees the old one; `sweep` then takes the old bits off the edges, a few milliseconds at
a time, and bits are used again. A removed block that an offload tier may still refer to stays in the tree
under a bit that no lookup sees.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

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
from gateway.index.base import FULL_ATTENTION, LEFT, LINKS, MAX_REMOVED, Applied, Holdings, Losses
from gateway.index.edges import POSITION_BITS, Edges
from gateway.index.engine_hashes import EngineHashTable, entries_of, key_of, keys_of
from gateway.index.followed_tiers import MAX_GROUPS, MAX_MEDIA
from gateway.index.holder import Holder, Tier, one_less, one_more
from gateway.index.kv_groups import Groups
from gateway.index.worker_bits import WorkerBits
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.index")

_NOWHERE: Final = EngineHashTable()
_PLAIN: Final = FULL_ATTENTION | {None}

SWEEP_EDGES: Final = 500
SWEEP_BUCKETS: Final = 1_000
SWEEP_BLOCKS: Final = 100
JOINED_AT_ONCE: Final = 256
"""Blocks of a shared tier that a worker holds with its first event there; the others are left to sweeps."""


class MemoryIndex:
    def __init__(self, losses: Losses | None = None, holdings: Holdings | None = None) -> None:
        self._losses = losses
        self._log = RateLimitedLog(log)
        self._edges = Edges(holdings)
        self._holders: dict[WorkerId, Holder] = {}
        self._bits = WorkerBits(holdings)
        self._has_tiers = False
        self._bounded: dict[WorkerId, Groups] = {}
        self._sharers: dict[
            tuple[str, BlockHash, int | None], list[Holder]
        ] = {}  # by (shared tier, root, block size)
        self._joins: list[tuple[Holder, Holder, Tier, list[bytearray]]] = []  # comers, known sharers, blocks
        self._next_edge = 0  # position of the sweep under way
        self._waste: list[list[bytearray]] = []  # engine-hash tables of forgotten workers

    def __repr__(self) -> str:
        return f"MemoryIndex(workers={len(self._holders)}, blocks={self._edges.num_blocks})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        self._holders[worker] = Holder(self._bits.allocate(worker), root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        if (holder := self._holders.pop(worker, None)) is not None:
            self._retire(worker, holder)

    def reset_worker(self, worker: WorkerId) -> None:
        old = self._holders[worker]
        self._retire(worker, old)
        self._holders[worker] = Holder(
            self._bits.allocate(worker), old.root, old.block_size, applied=old.applied
        )

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        holder = self._holders[worker]
        match event:
            case BlocksStored() | RunStored() | BlocksRemoved() if not holder.followed.follow(
                event.medium, event.group_idx
            ):
                self._ignore(worker, holder)
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
                holder.applied.unknown(event)

    def republish(self, holding: int) -> None:
        """Notify the `Holdings` observer of all blocks of a holding again."""
        self._edges.republish(holding)

    def overlap(
        self, hashes: Sequence[BlockHash], most: int | None = None, *, drops_last: bool = False
    ) -> Mapping[WorkerId, int]:
        found: dict[WorkerId, int] = {}
        for workers, depth in self._edges.walk(hashes, self._bits.live):
            while workers:
                bit = workers & -workers
                found[self._bits.workers[bit]] = depth
                workers ^= bit
        if self._bounded:
            self._bound(found, hashes, most, drops_last)
        return found

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        return {worker: self._media(worker, hashes[:depth]) for worker, depth in self.overlap(hashes).items()}

    def offloaded(
        self, hashes: Sequence[BlockHash], overlap: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        found: dict[WorkerId, Mapping[tuple[str, ...], int]] = {}
        if self._has_tiers:
            for worker, depth in overlap.items():
                holder = self._holders[worker]
                if holder.off_gpu and (some := holder.offloaded(self._edges.along(hashes[:depth]))):
                    found[worker] = some
        return found

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        holder = self._holders.get(worker)
        if holder is None or not hashes:
            return holder is not None
        return self._edges.walk(hashes, holder.bit) == [(holder.bit, len(hashes))]

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        block = self._holders[worker].find(key_of(name))
        return None if block is None else self._edges.hash_at(block)

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        tiers = self._holders[worker].tiers.values()
        for block in set().union(*(names.numbers() for names in tiers)):
            yield self._edges.hash_at(block)

    def num_blocks(self, worker: WorkerId) -> int:
        return self._holders[worker].num_blocks

    def applied(self, worker: WorkerId) -> Applied:
        return self._holders[worker].applied

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        return self._holders[worker].num_kept(on_gpu)

    def exclusive(self, first: int, num: int) -> tuple[Mapping[WorkerId, int], bool]:
        found, is_more = self._edges.exclusive(self._bits.live, first, num)
        return {self._bits.workers[bit]: blocks for bit, blocks in found.items()}, is_more

    def sweep(self) -> bool:
        if self._joins:
            self._join(SWEEP_BLOCKS)
            return True
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

    def _ignore(self, worker: WorkerId, holder: Holder) -> None:
        """Count an event of a medium or group that is not followed."""
        holder.applied.num_unknown_events += 1
        text = (
            "worker %s: its KV events name more than %d media or %d groups; those of further ones are ignored"
        )
        self._log.warning(text, worker, MAX_MEDIA, MAX_GROUPS)

    def _store(self, worker: WorkerId, holder: Holder, event: BlocksStored) -> None:
        num, size = len(event.engine_hashes), event.block_size
        if event.group_idx or holder.groups is not None or event.spec_kind not in _PLAIN or not num:
            groups = self._groups(worker, holder)
            if not groups.learn(event.group_idx, event.spec_kind, size, event.window):
                return self._store_other(holder, event)
        if not event.tokens:
            return self._store_by_name(holder, event)
        parent = None
        if event.parent is not None and (parent := holder.find(key_of(event.parent))) is None:
            holder.applied.orphaned(event.medium, num)
            return
        if size < 1 or len(event.tokens) != size * num or (holder.block_size or size) != size:
            holder.applied.mismatched(event, holder.block_size)
            return
        before = holder.root if parent is None else self._edges.hash_at(parent)
        hashes = hash_blocks(event.tokens, size, before, event.extra_keys)
        self._place(holder, keys_of(event.engine_hashes), hashes, parent, (event.medium, event.group_idx))

    def _store_run(self, worker: WorkerId, holder: Holder, event: RunStored) -> None:
        """Store a run hashed by an agent, only behind its own parent: a block stored twice in the tree is
        found once."""
        parent = None if event.parent is None else holder.find(key_of(event.parent))
        before = holder.root if parent is None else self._edges.hash_at(parent)
        if before != event.before or (parent is None and event.parent is not None):
            holder.applied.orphaned(event.medium, len(event.blocks))
            return
        if len(event.blocks) != len(event.engine_hashes):
            holder.applied.num_mismatched += 1
            return
        if event.group_idx > 0 or (holder.groups is not None and not event.group_idx):
            self._groups(worker, holder)
        names, tier = keys_of(event.engine_hashes), (event.medium, event.group_idx)
        self._place(holder, names, event.blocks, parent, tier)

    def _place(
        self,
        holder: Holder,
        names: Sequence[int],
        hashes: Sequence[BlockHash],
        parent: int | None,
        tier: Tier,
    ) -> None:
        num, done = len(names), 0
        holder.has_full |= not tier[1]
        holder.applied.num_stored += num
        others = self._others(holder, tier[0]) if SHARED in tier[0] else ()
        for first, count, held in self._edges.store(holder.bit, hashes, parent):
            some = names[done : done + count] if count < num else names
            holder.num_blocks += count - held.bit_count()
            self._hold(holder, tier, some, first, held)
            for other in others:
                self._hold_too(other, tier, some, first)
            done += count
        if holder.groups is not None:
            self._count(holder, tier, names)
            holder.groups.found(names, hashes)

    def _store_by_name(self, holder: Holder, event: BlocksStored) -> None:
        """Store blocks of an offload tier without tokens: the engine hash was stored elsewhere before."""
        if event.group_idx == LEFT and not event.engine_hashes:
            holder.has_tiers = True
            return
        tier = (event.medium, event.group_idx)
        others = self._others(holder, event.medium) if SHARED in event.medium else ()
        for name in keys_of(event.engine_hashes):
            block = holder.find(name)
            if block is None:
                holder.applied.orphaned(event.medium, 1)
                continue
            holder.applied.num_stored += 1
            for other in (holder, *others):
                self._hold_too(other, tier, (name,), block)
        if holder.groups is not None and not event.engine_hashes:  # an agent announces its groups so
            self._count(holder, tier, ())

    def _hold_too(self, holder: Holder, tier: Tier, names: Sequence[int], first: int) -> None:
        """Add a worker as holder of consecutive blocks that are in the tree already."""
        held = self._edges.hold_known(holder.bit, first, len(names))
        holder.num_blocks += len(names) - held.bit_count()
        self._hold(holder, tier, names, first, held)
        holder.has_full |= not tier[1]
        if holder.groups is not None or tier[1] > 0:
            self._groups(self._bits.workers[holder.bit], holder)
            self._count(holder, tier, names)

    def _hold(self, holder: Holder, tier: Tier, names: Sequence[int], first: int, held: int) -> None:
        """Add consecutive blocks to a tier; `held` is the bitmap of those held before in any tier."""
        there = holder.at(tier)
        medium = tier[0]
        here = holder.in_medium(medium, first, held)
        if not here:
            there.add(names, first)
        else:
            for i, name in enumerate(names):
                if not here >> i & 1:
                    there.add((name,), first + i)
                elif there.find(name) is None:
                    there.add((name,), first + i)
                    one_more(holder.aliases, (medium, first + i))
                elif SHARED not in medium:  # a shared tier has one copy, however many workers store it
                    one_more(holder.copies, (tier, name))
        if medium != GPU or holder.off_gpu:
            holder.enter(medium, first, (1 << len(names)) - 1, held)
            holder.has_tiers = self._has_tiers = True
        if holder.removed:
            for name in names:
                self._forget_removed(holder, name)

    def _remove(self, holder: Holder, event: BlocksRemoved, applied: Applied) -> None:
        medium, tier = event.medium, (event.medium, event.group_idx)
        names = keys_of(event.engine_hashes)
        if holder.groups is not None:
            num = holder.groups.remove(tier, names)
            if not holder.groups.is_prefix(event.group_idx):
                applied.num_removed += num
                applied.num_unknown_removals += len(names) - num
                return
        there = holder.tiers.get(tier, _NOWHERE)
        for name in names:
            if holder.copies and one_less(holder.copies, (tier, name)):
                applied.num_removed += 1
                continue
            block = there.pop(name)
            if block is None:
                applied.num_unknown_removals += 1
                continue
            applied.num_removed += 1
            if holder.has_tiers and event.group_idx != LINKS:
                self._remember_removed(holder, name, block)
            if holder.aliases and one_less(holder.aliases, (medium, block)):
                continue
            if holder.leave(medium, block):
                holder.num_blocks -= 1
                if self._losses is not None:
                    self._losses.evict(self._edges.hash_at(block))
                self._edges.release(holder.bit, block)

    def _clear(self, worker: WorkerId, holder: Holder) -> None:
        """Drop all GPU blocks (the engine cleared its own cache); offload tiers keep theirs. Costs no more
        than the stores of these blocks did."""
        if holder.groups is not None:
            holder.groups.clear()
        if not holder.num_on_gpu():
            return
        if self._losses is not None:
            self._losses.end(worker)
        if holder.num_on_gpu() < len(holder.off_gpu) + len(holder.copies) + len(holder.aliases):
            for block in holder.drop_gpu():
                if self._losses is not None:
                    self._losses.forget(self._edges.hash_at(block).to_bytes(8, sys.byteorder))
                self._edges.release(holder.bit, block)
            return
        self._bits.retire(holder.bit)
        holder.bit = self._bits.allocate(worker)
        self._waste += [names.buckets for names in holder.clear_gpu()]
        for number, blocks in holder.off_gpu.items():
            self._edges.grant(holder.bit, number, blocks)

    def _media(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> dict[str, int]:
        """Count blocks that the worker holds by medium."""
        holder = self._holders[worker]
        if not holder.offload:
            return {GPU: len(hashes)}
        counts = dict.fromkeys((GPU, *holder.offload), 0)
        for number, num in self._edges.along(hashes):
            span = (1 << num) - 1
            for medium in counts:
                counts[medium] += holder.in_medium(medium, number << POSITION_BITS, span).bit_count()
        return {medium: count for medium, count in counts.items() if count}

    # removed blocks, remembered for offload tiers ---------------------------------------------

    def _remember_removed(self, holder: Holder, name: int, block: int) -> None:
        """Remember a block for a while if its engine hash is gone from the last tier."""
        if holder.find(name) is not None:
            return
        if not holder.hidden:
            holder.hidden = self._bits.allocate_hidden(self._bits.workers[holder.bit])
        if self._edges.hold_known(holder.hidden, block):
            one_more(holder.aliases, ("", block))
        holder.removed[name] = block
        if len(holder.removed) > MAX_REMOVED:
            self._forget_removed(holder, next(iter(holder.removed)))

    def _forget_removed(self, holder: Holder, name: int) -> None:
        block = holder.removed.pop(name, None)
        if block is not None and not one_less(holder.aliases, ("", block)):
            self._edges.release(holder.hidden, block)

    # groups ------------------------------------------------------------------------------------

    def _groups(self, worker: WorkerId, holder: Holder) -> Groups:
        if holder.groups is None:
            holder.groups = self._bounded[worker] = Groups(holder.block_size)
            if holder.has_full:
                holder.groups.begin(0)
        return holder.groups

    def _count(self, holder: Holder, tier: Tier, names: Sequence[int]) -> None:
        """Count blocks in a tier for full attention: of several such groups, each must have a block."""
        groups = holder.groups
        assert groups is not None
        if not groups.begin(tier[1]) or groups.num_full != 2:
            return groups.store(tier, names, self._hashes_of(holder))
        for known, named in holder.tiers.items():
            for name, _ in named.items():
                groups.store(known, [name] * holder.copies.get((known, name), 1), self._hashes_of(holder))

    def _store_other(self, holder: Holder, event: BlocksStored) -> None:
        assert holder.groups is not None
        names = keys_of(event.engine_hashes)
        holder.applied.num_stored += len(names)
        holder.groups.store((event.medium, event.group_idx), names, self._hashes_of(holder))

    def _hashes_of(self, holder: Holder) -> Callable[[int], BlockHash | None]:
        def find(name: int) -> BlockHash | None:
            block = holder.find(name)
            return None if block is None else self._edges.hash_at(block)

        return find

    def _bound(
        self, found: dict[WorkerId, int], hashes: Sequence[BlockHash], most: int | None, drops_last: bool
    ) -> None:
        if drops_last and most is not None:
            most += 1
        for worker, groups in self._bounded.items():
            if depth := found.get(worker, 0):
                top = depth if most is None else min(depth, most)
                found[worker] = groups.bound(hashes, top, drops_last=drops_last)
                if not found[worker]:
                    del found[worker]

    # shared tiers ------------------------------------------------------------------------------

    def _others(self, holder: Holder, medium: str) -> Sequence[Holder]:
        """Return the other workers that reach the shared tier `medium`: those with earlier events of it."""
        sharers = self._sharers.setdefault((medium, holder.root, holder.block_size), [])
        if holder not in sharers:
            for tier, names in sharers[0].tiers.items() if sharers else ():
                if tier[0] == medium:
                    self._joins.append((holder, sharers[0], tier, names.parts()))
            sharers.append(holder)
            self._join(JOINED_AT_ONCE)
        return [other for other in sharers if other is not holder]

    def _join(self, num: int) -> None:
        """Make workers that have come to shared tiers hold some `num` more of the blocks there."""
        while self._joins and num > 0:
            holder, source, tier, parts = self._joins[-1]
            if not parts:
                self._joins.pop()
                continue
            there = source.tiers.get(tier, _NOWHERE)
            for name, block in entries_of(parts.pop()):
                num -= 1
                if there.find(name) == block:  # not removed meanwhile
                    self._hold_too(holder, tier, (name,), block)

    def _retire(self, worker: WorkerId, holder: Holder) -> None:
        if self._losses is not None:
            self._losses.end(worker)
        self._bits.retire(holder.bit)
        self._bits.retire(holder.hidden)
        self._bounded.pop(worker, None)
        self._joins = [join for join in self._joins if join[0] is not holder and join[1] is not holder]
        for key, sharers in list(self._sharers.items()):
            if holder in sharers:
                sharers.remove(holder)
                if not sharers:
                    del self._sharers[key]
        self._waste += [names.buckets for names in holder.tiers.values()]
