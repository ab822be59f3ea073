"""Writer of a Redis tree: an index's holdings as operations for `apply.lua`; pure, and all in order.

    hold, release ─► queue ─ plan ─► batch (bytes) ─ server ─► where each block lies ─ done ─► Slot.where

A block stays where the tree has put it as long as its slot holds it, so the writer keeps the location of each
(13 bytes) and later operations name the location, not the path. A run behind the run before it in the queue
is one operation with it: blocks that come one at a time cost as much as runs. What depends on an answer that
is not there yet waits for the next batch.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TypeAlias

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.engine_hashes import EngineHashTable

BATCH_BLOCKS = 4096
"""Blocks per call: some two milliseconds of the server, in which it does nothing else."""
BATCH_OPERATIONS = 512
RUN_BLOCKS = 1024
"""Blocks of the longest run that is one operation."""

UNPLACED, BEHIND, AT = range(3)
"""Reference block of a hold's location: none, the block before the run, or its first block."""

_hold = Struct("<cHBQHQH")
_release = Struct("<cHQH")
_place = Struct("<QHH")
_hashes = Struct("<Q").pack


class Slot:
    """Holdings of a worker under one number of the server.

    `where` is the location of each block: which of `heads`, the first blocks of edges, and how many blocks
    behind.
    """

    def __init__(self, worker: WorkerId, fence: int, *, is_hidden: bool) -> None:
        self.worker = worker
        self.fence = fence
        self.is_hidden = is_hidden
        self.is_rejected = False  # another gateway publishes this worker, under a newer fence
        self.number: int | None = None
        self.where = EngineHashTable()
        self._heads: list[int] = []
        self._counts: list[int] = []
        self._edge_of: dict[int, int] = {}
        self._free: list[int] = []

    def __repr__(self) -> str:
        return f"Slot({self.number}, {self.worker}, blocks={len(self.where)}, edges={self.num_edges})"

    @property
    def num_edges(self) -> int:
        return len(self._edge_of)

    def place(self, block: int) -> tuple[int, int] | None:
        """Return the first block of the edge where a block lies, and the block's position."""
        found = self.where.find(block)
        return None if found is None else (self._heads[found >> 8], found & 255)

    def add(self, blocks: Sequence[BlockHash], head: int, position: int) -> None:
        edge = self._edge_of.get(head)
        if edge is None:
            edge = self._edge_of[head] = self._free.pop() if self._free else len(self._heads)
            if edge == len(self._heads):
                self._heads.append(head)
                self._counts.append(0)
            self._heads[edge] = head
        self._counts[edge] += len(blocks)
        self.where.add(blocks, edge << 8 | position)

    def pop(self, block: int) -> tuple[int, int] | None:
        found = self.where.pop(block)
        if found is None:
            return None
        edge = found >> 8
        head = self._heads[edge]
        self._counts[edge] -= 1
        if not self._counts[edge]:
            del self._edge_of[head]
            self._free.append(edge)
        return head, found & 255


@dataclass(slots=True, eq=False)
class HoldWrite:
    slot: Slot
    blocks: list[BlockHash]
    before: BlockHash | None


@dataclass(slots=True, eq=False)
class ReleaseWrite:
    slot: Slot
    block: BlockHash


@dataclass(slots=True, eq=False)
class EndWrite:
    slot: Slot


Operation: TypeAlias = HoldWrite | ReleaseWrite | EndWrite


@dataclass(slots=True, eq=False)
class WriteBatch:
    """Operations of one script call: `packed` for the script, `holds` in the order of its answers."""

    packed: bytes
    holds: list[HoldWrite]
    num_blocks: int


@dataclass(slots=True)
class _Plan:
    parts: list[bytes] = field(default_factory=list)
    holds: list[HoldWrite] = field(default_factory=list)
    fresh: set[int] = field(default_factory=set)
    releases: dict[tuple[int, int], bytearray] = field(default_factory=dict)
    num_blocks: int = 0
    num_operations: int = 0

    @property
    def has_room(self) -> bool:
        return self.num_blocks < BATCH_BLOCKS and self.num_operations < BATCH_OPERATIONS

    def flush_releases(self) -> None:
        for (number, head), positions in self.releases.items():
            packed = _release.pack(b"R", number, head, len(positions))
            self.parts.append(packed + bytes(sorted(positions, reverse=True)))
        self.releases.clear()


class Writer:
    """Writer of one tree: an index's `Holdings` observer for the workers of one model."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._ended: dict[Slot, None] = {}  # still location hints for blocks that other slots take over
        self._queue: deque[Operation] = deque()
        self._tails: dict[Slot, HoldWrite] = {}
        self.age = b""  # of the tree in which slots were opened
        self.unopened: list[Slot] = []
        self.unclosed: list[Slot] = []
        self.unknown: set[WorkerId] = (
            set()
        )  # workers with earlier slots, if any, that end when the next is opened
        self.num_queued = 0

    def __repr__(self) -> str:
        return f"Writer(slots={len(self._slots)}, queued={self.num_queued})"

    @property
    def slots(self) -> Sequence[Slot]:
        return list(self._slots.values())

    @property
    def rejected(self) -> set[WorkerId]:
        """Workers that another gateway publishes, under a newer fence."""
        return {slot.worker for slot in self._slots.values() if slot.is_rejected}

    @property
    def holdings(self) -> Sequence[int]:
        return list(self._slots)

    def restarted(self) -> "Writer":
        """Return a writer without locations, for all blocks to be written again. Earlier slots of these
        workers are closed, whatever their numbers: on a server that took over, our numbers may be others'."""
        fresh = Writer()
        fresh.age = self.age
        for holding, slot in self._slots.items():
            fresh.begin(holding, slot.worker, slot.fence, is_hidden=slot.is_hidden)
        begun = {slot.worker for slot in fresh.unopened}
        for worker, fence in {slot.worker: slot.fence for slot in self.unclosed}.items():
            if worker not in begun:  # opened only to be closed
                fresh.unclosed.append(Slot(worker, fence, is_hidden=True))
        fresh.unopened += fresh.unclosed
        fresh.unknown = {slot.worker for slot in fresh.unopened}
        return fresh

    # Holdings observer -------------------------------------------------------------------------

    def begin(self, holding: int, worker: WorkerId, fence: int, *, is_hidden: bool) -> None:
        slot = self._slots[holding] = Slot(worker, fence, is_hidden=is_hidden)
        self.unopened.append(slot)

    def end(self, holding: int) -> None:
        slot = self._slots.pop(holding)
        self._ended[slot] = None
        self._tails.pop(slot, None)
        self._queue.append(EndWrite(slot))
        if not slot.is_rejected:
            self.unclosed.append(slot)

    def hold(self, holding: int, blocks: Sequence[BlockHash], before: BlockHash | None) -> None:
        slot = self._slots[holding]
        if slot.is_rejected:
            return
        self.num_queued += len(blocks)
        tail = self._tails.get(slot)
        if tail and tail.blocks[-1] == before and len(tail.blocks) + len(blocks) <= RUN_BLOCKS:
            tail.blocks += blocks
            return
        tail = self._tails[slot] = HoldWrite(slot, list(blocks), before)
        self._queue.append(tail)

    def release(self, holding: int, block: BlockHash) -> None:
        slot = self._slots[holding]
        if slot.is_rejected:
            return
        self.num_queued += 1
        self._tails.pop(slot, None)  # a run must not grow to before this
        self._queue.append(ReleaseWrite(slot, block))

    def opened(self, slot: Slot, number: int, age: bytes) -> bool:
        """Set a slot's number in a tree of this age; False where other slots have numbers of an older one."""
        if age != self.age:
            if any(other.number is not None for other in self._slots.values()):
                return False
            self.age = age
            self.unclosed = [other for other in self.unclosed if other.number is None]  # gone with theirs
        slot.number = number
        self.unknown.discard(slot.worker)
        self.unopened.remove(slot)
        return True

    def reject(self, slot: Slot) -> None:
        """Stop writing a slot with a worker that another gateway publishes."""
        slot.is_rejected = True
        self.unopened.remove(slot)
        self.unclosed = [other for other in self.unclosed if other is not slot]

    # writing -----------------------------------------------------------------------------------

    def plan(self) -> WriteBatch | None:
        """Return the next operations with known locations; None where nothing is queued. All slots must be
        open."""
        plan, queue = _Plan(), self._queue
        while queue and plan.has_room and self._encode(plan, queue[0]):
            queue.popleft()
        plan.flush_releases()
        self._tails.clear()
        self.num_queued -= plan.num_blocks
        return WriteBatch(b"".join(plan.parts), plan.holds, plan.num_blocks) if plan.parts else None

    def done(self, batch: WriteBatch, placed: bytes, gone: Sequence[int]) -> list[Slot]:
        """Apply the script's answer; returns the slots unknown to the server: nothing of them was written."""
        parts, lost = _place.iter_unpack(placed), set(gone)
        for hold in batch.holds:
            done = 0
            while done < len(hold.blocks) and hold.slot.number not in lost:
                head, position, count = next(parts)
                whole = count == len(hold.blocks)
                hold.slot.add(hold.blocks if whole else hold.blocks[done : done + count], head, position)
                done += count
        return [slot for slot in self._slots.values() if slot.number in lost]

    def _encode(self, plan: _Plan, operation: Operation) -> bool:
        """Encode an operation; False where it must wait for the answer to what is planned already."""
        if operation.slot.is_rejected and not isinstance(operation, EndWrite):
            self.num_queued -= len(operation.blocks) if isinstance(operation, HoldWrite) else 1
            return True
        match operation:
            case HoldWrite():
                return self._encode_hold(plan, operation)
            case ReleaseWrite():
                return self._encode_release(plan, operation)
            case EndWrite():
                self._ended.pop(operation.slot, None)
        return True

    def _encode_hold(self, plan: _Plan, hold: HoldWrite) -> bool:
        slot, blocks, before = hold.slot, hold.blocks, hold.before
        if before in plan.fresh:
            return False
        assert slot.number is not None, "opened before"
        mode, (head, position), named = self._place_of(hold)
        plan.flush_releases()
        packed = _hold.pack(b"H", slot.number, mode, head, position, named, len(blocks))
        plan.parts += (packed, Struct(f"<{len(blocks)}Q").pack(*blocks))
        plan.holds.append(hold)
        plan.fresh.update(blocks)
        plan.num_blocks += len(blocks)
        plan.num_operations += 1
        return True

    def _place_of(self, hold: HoldWrite) -> tuple[int, tuple[int, int], int]:
        """Return mode, location and reference block of a hold.

        Runs lie behind their own block. Single blocks that are known from elsewhere (an offload tier's) may
        lie behind one that the slot does not hold.
        """
        before, first = hold.before, hold.blocks[0]
        if before is not None and (place := hold.slot.place(before)):
            return BEHIND, place, before
        if before is not None or len(hold.blocks) == 1:
            for other in self._all():
                if place := other.place(first):
                    return AT, place, first
            for other in self._all() if before is not None else ():
                if place := other.place(before or 0):
                    return BEHIND, place, before or 0
        return UNPLACED, (0, 0), 0

    def _all(self) -> Iterator[Slot]:
        yield from self._slots.values()
        yield from self._ended

    def _encode_release(self, plan: _Plan, release: ReleaseWrite) -> bool:
        slot, block = release.slot, release.block
        if block in plan.fresh:
            return False
        place = slot.pop(block)
        if place is None:  # its hold was refused, since the server had forgotten the slot
            self.num_queued -= 1
            return True
        assert slot.number is not None, "opened before"
        key = slot.number, place[0]
        plan.num_blocks += 1
        plan.num_operations += key not in plan.releases
        plan.releases.setdefault(key, bytearray()).append(place[1])
        return True
