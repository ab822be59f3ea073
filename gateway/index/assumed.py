"""Blocks that workers are assumed to hold because of requests sent to them, before or without KV events.

Two uses of one mechanism:
- a request in flight will leave its prompt's blocks at its worker: they are *pinned* until it ends, so
  that the next request, milliseconds later, sees them;
- for a worker without events this is the only knowledge: its blocks are kept for `keep_s` after the
  request, up to its cache size; the least recently sent go first, tails before heads.
For workers with events blocks are kept for a second, time enough for the event to arrive.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId

SWEEP_EVERY_S: Final = 0.01
MAX_EXPIRED: Final = 512
"""Blocks per worker that one lookup expires at most: a fraction of a millisecond."""


@mypyc_attr(acyclic=True)
class _Kept:
    """Blocks of one finished request and their expiry time; blocks of its tail may be gone already."""

    __slots__ = ("until", "blocks")

    def __init__(self, until: float, blocks: list[BlockHash]) -> None:
        self.until = until
        self.blocks = blocks


@dataclass(slots=True, eq=False)
class _Assumed:
    """Assumed blocks of one worker: pinned by requests in flight, and kept after requests have ended.

    `again` counts the further requests that pin a block. `kept` has each block under the request that used it
    last, `ends` those requests, the one that expires soonest first. Sets and dicts are changed a run at a
    time: a block at a time costs five times as much.

    A block is never assumed without those before it in its run: runs are pinned and kept whole, and dropped
    from the tail. So the assumed length of a prompt can be found by bisection.
    """

    keep_s: float
    max_blocks: int
    pins: set[BlockHash] = field(default_factory=set)
    again: dict[BlockHash, int] = field(default_factory=dict)
    kept: dict[BlockHash, _Kept] = field(default_factory=dict)
    ends: deque[_Kept] = field(default_factory=deque)

    def has(self, block: BlockHash, now: float) -> bool:
        return block in self.pins or self.kept_until(block) > now

    def kept_until(self, block: BlockHash) -> float:
        kept = self.kept.get(block)
        return 0.0 if kept is None else kept.until

    def pin(self, hashes: Sequence[BlockHash]) -> None:
        new = set(hashes)
        for block in self.pins & new:
            self.again[block] = self.again.get(block, 0) + 1
        self.pins |= new

    def unpin(self, hashes: Sequence[BlockHash]) -> None:
        gone = set(hashes)
        if self.again:
            for block in self.again.keys() & gone:
                gone.discard(block)
                if self.again[block] == 1:
                    del self.again[block]
                else:
                    self.again[block] -= 1
        self.pins -= gone

    def keep(self, hashes: Sequence[BlockHash], now: float) -> None:
        kept = _Kept(now + self.keep_s, list(hashes))
        self.kept.update(dict.fromkeys(hashes, kept))
        self.ends.append(kept)
        while len(self.kept) > self.max_blocks:
            self.forget_oldest()

    def reset(self) -> None:
        self.kept.clear()
        self.ends.clear()

    def forget_oldest(self) -> None:
        """Drop the last block of the request that expires next, unless a later request used it too."""
        oldest = self.ends[0]
        if not oldest.blocks:
            self.ends.popleft()
        elif self.kept.get(block := oldest.blocks.pop()) is oldest:
            del self.kept[block]


class AssumedIndex:
    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Assumed] = {}
        self._sweep_s = 0.0
        self.resets: list[Callable[[WorkerId], None]] = []  # observers of workers that lost their cache

    def __repr__(self) -> str:
        num_blocks = sum(len(known.kept.keys() | known.pins) for known in self._workers.values())
        return f"AssumedIndex(workers={len(self._workers)}, blocks={num_blocks})"

    def add_worker(self, worker: WorkerId, *, keep_s: float, max_blocks: int) -> None:
        self.drop_worker(worker)
        self._workers[worker] = _Assumed(keep_s, max_blocks)

    def set_keep(self, worker: WorkerId, keep_s: float) -> None:
        """Change how long blocks are kept from now on; a shorter time also drops what is kept already."""
        if known := self._workers.get(worker):
            if keep_s < known.keep_s:
                known.reset()
            known.keep_s = keep_s

    def drop_worker(self, worker: WorkerId) -> None:
        if self._workers.pop(worker, None):
            for reset in self.resets:
                reset(worker)

    def reset_worker(self, worker: WorkerId) -> None:
        """Forget all blocks of a restarted engine but those pinned by requests in flight."""
        self._workers[worker].reset()
        for reset in self.resets:
            reset(worker)

    def pin(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> None:
        if known := self._workers.get(worker):
            known.pin(hashes)

    def unpin(self, worker: WorkerId, hashes: Sequence[BlockHash], now: float, *, was_run: bool) -> None:
        """End a `pin`. Blocks of a request that did not reach its first token are not kept."""
        if known := self._workers.get(worker):
            known.unpin(hashes)
            if was_run and hashes:
                known.keep(hashes, now)

    def extend(self, hashes: Sequence[BlockHash], overlap: dict[WorkerId, int], now: float) -> None:
        """Lengthen each worker's overlap by the blocks that follow and are assumed to be there.

        `overlap` counts the leading blocks known from events and is changed in place; pins matter only behind
        those.
        """
        if now >= self._sweep_s:
            self._sweep(now)
        num = len(hashes)
        for worker, known in self._workers.items():
            if known.pins or known.kept:
                first = overlap.get(worker, 0)
                if first < num and known.has(hashes[first], now):
                    overlap[worker] = _depth(known, hashes, first + 1, now)

    def num_kept(self, worker: WorkerId) -> int:
        """Number of blocks that finished requests are assumed to have left at the worker."""
        return len(self._workers[worker].kept)

    def num_pinned(self, worker: WorkerId) -> int:
        """Number of blocks pinned by requests in flight; some may be kept as well."""
        return len(self._workers[worker].pins)

    def _sweep(self, now: float) -> None:
        """Drop expired blocks in portions, since a long prompt's expire all at once. Lookups check the time
        themselves, so this only frees memory."""
        self._sweep_s = now + SWEEP_EVERY_S
        for known in self._workers.values():
            room = MAX_EXPIRED
            while room and known.ends and known.ends[0].until <= now:
                known.forget_oldest()
                room -= 1


def _depth(known: _Assumed, hashes: Sequence[BlockHash], least: int, now: float) -> int:
    """Count the leading blocks of `hashes` that are held or assumed, at least `least`."""
    most = len(hashes)
    while least < most:
        middle = (least + most) // 2
        if known.has(hashes[middle], now):
            least = middle + 1
        else:
            most = middle
    return least
