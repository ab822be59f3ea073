"""Bit masks of the workers that hold each block: a lookup walks a prompt once for all workers."""

from collections.abc import Sequence

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId


class HolderMasks:
    def __init__(self) -> None:
        self._masks: dict[BlockHash, int] = {}
        self._by_bit: dict[int, WorkerId] = {}

    def __len__(self) -> int:
        return len(self._masks)

    def allocate_bit(self, worker: WorkerId) -> int:
        """Reserve the lowest free bit for a worker, so that masks stay small integers."""
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        self._by_bit[bit] = worker
        return bit

    def free_bit(self, bit: int) -> None:
        """Give a worker's bit back; the caller has removed it from all blocks before."""
        del self._by_bit[bit]

    def add(self, block: BlockHash, bit: int) -> bool:
        """Mark the worker as a holder; False if it was one."""
        mask = self._masks.get(block, 0)
        if mask & bit:
            return False
        self._masks[block] = mask | bit
        return True

    def remove(self, block: BlockHash, bit: int) -> None:
        mask = self._masks[block] & ~bit
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]

    def walk(self, hashes: Sequence[BlockHash]) -> dict[WorkerId, int]:
        """Count leading blocks for each worker that holds at least the first."""
        found: dict[WorkerId, int] = {}
        get = self._masks.get
        held = get(hashes[0], 0) if hashes else 0
        for depth, block in enumerate(hashes):
            if not held:
                return found
            still = held & get(block, 0)
            if still != held:
                self._collect(held ^ still, depth, found)
                held = still
        self._collect(held, len(hashes), found)
        return found

    def _collect(self, bits: int, depth: int, found: dict[WorkerId, int]) -> None:
        while bits:
            bit = bits & -bits
            found[self._by_bit[bit]] = depth
            bits ^= bit
