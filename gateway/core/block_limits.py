"""How many blocks kvgate keeps of one worker: by what the worker declares, with slack, and never without end.

A worker that stores without removing (a bug, or a lie) costs memory here until somebody stops it. What it
declares is its GPU cache in blocks; slack is for what a declaration does not say.
"""

from dataclasses import dataclass

GPU_SLACK = 4
"""Times what is declared: copies of a block under one hash, groups of a hybrid model with blocks smaller
than a page, and context-parallel ranks of which each counts its own part."""
GPU_ROOM = 8_192
"""Blocks beyond that, for the smallest caches."""
OFFLOADED_SLACK = 16
"""Times the GPU cache, in all offload tiers together: no engine declares these. 80 GB of HBM and 1 TB of host
memory are 1 to 13."""
OFFLOADED_ROOM = 16_384
UNDECLARED_BLOCKS = 65_536
"""Taken for declared where nothing is: a million tokens at 16 a block."""
MAX_BLOCKS = 1 << 22
"""Whatever is declared: 4 million tokens at a page of one, 67 million at 16. Some 100 MB as prompts come, and
2 GB where each block is a prompt of its own."""


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Engine hashes that are kept of one worker, each in each place where it lies. `declared` is what these
    come from; None where it does not say."""

    on_gpu: int
    offloaded: int
    declared: int | None = None

    def exceeded(self, on_gpu: int, offloaded: int) -> str | None:
        """The exceeded limit in words, or None."""
        if on_gpu > self.on_gpu:
            return f"it stores {on_gpu:,} blocks without removing them, beyond {self.on_gpu:,}{self._why}"
        if offloaded > self.offloaded:
            raised = " (offload_blocks raises that)"
            return f"it offloads {offloaded:,} blocks, beyond {self.offloaded:,}{self._why}{raised}"
        return None

    @property
    def of_others(self) -> "BlockLimits":
        """For what others report of a worker: they have limits of their own, and may count in another way."""
        return BlockLimits(2 * self.on_gpu, 2 * self.offloaded, self.declared)

    @property
    def _why(self) -> str:
        if self.declared is None:
            return "; it declares no number of blocks"
        return f"; it declares {self.declared:,} on its GPU"


def block_limits(num_blocks: int | None, *, most: int = MAX_BLOCKS, offloaded: int = 0) -> BlockLimits:
    """`num_blocks` as the worker declares it, `most` for any worker, `offloaded` as an operator says (0: by
    what is declared)."""
    declared = num_blocks if num_blocks and num_blocks > 0 else None
    size = declared or UNDECLARED_BLOCKS
    on_gpu = min(most, GPU_SLACK * size + GPU_ROOM)
    return BlockLimits(on_gpu, min(most, offloaded or OFFLOADED_SLACK * size + OFFLOADED_ROOM), declared)
