"""How many blocks kvgate keeps of one worker: by what the worker declares, with slack, and never without end.

A worker that stores without removing (a bug, or a lie) costs memory here until somebody stops it. What it
declares is its GPU cache in blocks; slack is for what a declaration does not say.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gateway.core.worker import Worker, WorkerId

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
FLEET = 8
"""Times the limit of one worker, for all workers together: 335 workers of 100,000 blocks, by default. One
endpoint may have a thousand ranks, each a worker."""


class FleetBlocks:
    """Blocks kept of all workers together, by their last counts: at most `most`. Beyond it, the workers of
    endpoints that have more than their share are cut, so that one that lies does not displace the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._workers: dict[WorkerId, tuple[str, int]] = {}
        self._endpoints: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"FleetBlocks({self._total} of {self._most} blocks, {len(self._endpoints)} endpoints)"

    def exceeded(self, worker: Worker, num: int) -> str | None:
        """The exceeded limit in words, after which the worker's blocks are forgotten; or None. `num` is how
        many blocks are kept of the worker now."""
        self.drop(worker.id)
        self._count(worker.id, worker.url, num)
        share = self._most // max(len(self._endpoints), 1)
        if self._total <= self._most or self._endpoints[worker.url] <= share:
            return None
        self.drop(worker.id)
        total = f"all workers together store more than {self._most:,} blocks"
        return f"{total} (max_worker_blocks raises that), and its endpoint more than its share of {share:,}"

    def drop(self, worker: WorkerId) -> None:
        """Forget a worker that has left."""
        if (known := self._workers.pop(worker, None)) is not None:
            url, num = known
            self._total -= num
            self._endpoints[url] -= num
            if not self._endpoints[url]:
                del self._endpoints[url]

    def _count(self, worker: WorkerId, url: str, num: int) -> None:
        if num:
            self._workers[worker] = url, num
            self._total += num
            self._endpoints[url] += num


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Engine hashes that are kept of one worker, each in each place where it lies. `declared` is what these
    come from; None where it does not say. `of_fleet` counts them with those of all workers."""

    on_gpu: int
    offloaded: int
    declared: int | None = None
    of_fleet: Callable[[int], str | None] = field(default=lambda num: None, repr=False, compare=False)

    def exceeded(self, on_gpu: int, offloaded: int) -> str | None:
        """The exceeded limit in words, after which the worker's blocks are forgotten; or None."""
        own = self._own_exceeded(on_gpu, offloaded)
        return self.of_fleet(0 if own else on_gpu + offloaded) or own

    def _own_exceeded(self, on_gpu: int, offloaded: int) -> str | None:
        if on_gpu > self.on_gpu:
            return f"it stores {on_gpu:,} blocks without removing them, beyond {self.on_gpu:,}{self._why}"
        if offloaded > self.offloaded:
            raised = " (offload_blocks raises that)"
            return f"it offloads {offloaded:,} blocks, beyond {self.offloaded:,}{self._why}{raised}"
        return None

    @property
    def of_others(self) -> "BlockLimits":
        """Limits for reports of agents and other gateways, which have bounds of their own and may count
        differently."""
        return replace(self, on_gpu=2 * self.on_gpu, offloaded=2 * self.offloaded)

    @property
    def _why(self) -> str:
        if self.declared is None:
            return "; it declares no number of blocks"
        return f"; it declares {self.declared:,} on its GPU"


def block_limits(num_blocks: int | None, *, most: int = MAX_BLOCKS, offloaded: int = 0) -> BlockLimits:
    """Return the limits of a worker: `num_blocks` as it declares, `most` for any worker, `offloaded` as the
    operator configured (0: derived from `num_blocks`)."""
    declared = num_blocks if num_blocks and num_blocks > 0 else None
    size = declared or UNDECLARED_BLOCKS
    on_gpu = min(most, GPU_SLACK * size + GPU_ROOM)
    return BlockLimits(on_gpu, min(most, offloaded or OFFLOADED_SLACK * size + OFFLOADED_ROOM), declared)
