"""Block history: hashes of blocks that were once cached, with the last holder and how it lost them.

The table has a fixed size and two slots for each hash, so older entries may be overwritten. A hash
identifies its block and all blocks before it: if it is found, the blocks before it were cached too, found or
not.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from mmap import mmap
from typing import Final

from gateway.core.worker import WorkerId

SLOTS: Final = 1 << 20
"""Slots of 12 bytes, allocated by the system on first use: enough for a fleet of a million blocks."""

FEW_BLOCKS: Final = 64
"""Limit up to which blocks are looked up one by one; beyond it, a binary search looks up SAMPLE per step."""
SAMPLE: Final = 4
PORTION_BLOCKS: Final = 1000
"""Blocks written per portion, in half a millisecond."""

STATE_BITS: Final = 2

MAX_LIVES: Final = 10_000
"""Limit on remembered lives of workers, past ones included."""


class BlockState(IntEnum):
    """The last known state of a block."""

    HELD = 1
    EVICTED = 2
    RESET = 3


class CacheLifetimes:
    """Numbered lives of the workers' caches: each begins empty, after the previous one was lost."""

    def __init__(self) -> None:
        self._life_of: dict[WorkerId, int] = {}
        self._worker_of: dict[int, WorkerId] = {}
        self._next = 1

    def of(self, worker: WorkerId) -> int:
        """The number of the worker's current life."""
        life = self._life_of.get(worker)
        if life is None:
            life = self._life_of[worker] = self._next
            self._worker_of[life] = worker
            self._worker_of.pop(life - MAX_LIVES, None)
            self._next += 1
        return life

    def worker(self, life: int) -> WorkerId | None:
        """The worker that has or had this life; None if it is unknown or too long ago."""
        return self._worker_of.get(life)

    def is_over(self, life: int) -> bool:
        worker = self._worker_of.get(life)
        return worker is None or self._life_of.get(worker) != life

    def end(self, worker: WorkerId) -> None:
        """End the worker's life: all cached blocks are lost."""
        self._life_of.pop(worker, None)


class BlockHistory:
    """Table of block hashes with the last holder and state; `num_slots` is a power of two."""

    def __init__(self, num_slots: int = SLOTS) -> None:
        self._hashes = memoryview(mmap(-1, 8 * num_slots)).cast("Q")
        self._entries = memoryview(mmap(-1, 4 * num_slots)).cast("I")
        self._mask = num_slots - 1

    def find(self, block: int) -> int:
        """The entry of a block, for `state_of` and `life_of`; 0 if it is unknown."""
        at = block & self._mask
        if self._hashes[at] == block:
            return self._entries[at]
        at ^= 1
        return self._entries[at] if self._hashes[at] == block else 0

    def depth(self, blocks: Sequence[int], first: int) -> int:
        """The number of a prompt's leading blocks that were once cached; `first` of them are known to be."""
        low, high = first, len(blocks)
        while high - low > FEW_BLOCKS:
            middle = (low + high) // 2
            if any(map(self.find, blocks[middle - SAMPLE : middle])):
                low = middle
            else:
                high = middle
        while high > first and not self.find(blocks[high - 1]):
            high -= 1
        return high

    def hold(self, blocks: Sequence[int], life: int) -> Iterator[None]:
        """Record that a worker's life holds a prompt's blocks, from the last one back to one that is recorded
        already, a portion at a time."""
        entry = (life << STATE_BITS | BlockState.HELD) & 0xFFFFFFFF
        for number, block in enumerate(reversed(blocks), 1):
            if self.find(block) == entry:
                break
            self._entries[self._place(block)] = entry
            if number % PORTION_BLOCKS == 0:
                yield

    def lose(self, blocks: Iterable[int], state: BlockState) -> None:
        """Record how blocks were lost; the last holder is kept if it is known."""
        for block in blocks:
            at = self._place(block)
            self._entries[at] = self._entries[at] >> STATE_BITS << STATE_BITS | state

    def _place(self, block: int) -> int:
        hashes, at = self._hashes, block & self._mask
        if hashes[at] == block:
            return at
        other = at ^ 1
        if hashes[other] == block or (hashes[at] and not hashes[other]):
            at = other
        if hashes[at] != block:
            hashes[at], self._entries[at] = block, 0
        return at


def state_of(entry: int) -> int:
    return entry & (1 << STATE_BITS) - 1


def life_of(entry: int) -> int:
    return entry >> STATE_BITS
