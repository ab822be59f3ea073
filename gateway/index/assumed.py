"""What workers should hold because of what we sent them: no event has said so (yet).

Two uses of one mechanism:
- a request in flight will leave its prompt's blocks at its worker: its blocks are *pinned* until it
  ends, so that the next request, milliseconds later, sees them;
- a worker without events is known by nothing else: its blocks are kept for `keep_s` after the
  request, up to its cache size, the least recently sent first out and tails before heads.
For workers with events a second is kept, time enough for the event to arrive.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId

SWEEP_EVERY_S = 0.01
MAX_EXPIRED = 512
"""Blocks of one worker that a decision takes off at most, in a fraction of a millisecond."""


@mypyc_attr(acyclic=True)
class _Kept:
    """Blocks of one request that has ended, until when; those of its tail may be gone."""

    __slots__ = ("until", "blocks")

    def __init__(self, until: float, blocks: list[BlockHash]) -> None:
        self.until = until
        self.blocks = blocks


@dataclass(slots=True, eq=False)
class _Assumed:
    """`pins` are in flight, `again` counts the further requests that have one of them in flight. `kept`
    has each block under the request that used it last, `ends` those requests, the one that expires
    soonest first. Sets and dicts are changed a run at a time: a block at a time costs five times as much.

    A block is never assumed without those before it in its run: runs are pinned and kept whole, and given
    up from the tail. So how much of a prompt is assumed can be found by bisection.
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
        """A block of the request that expires next; one that a later request used too stays."""
        oldest = self.ends[0]
        if not oldest.blocks:
            self.ends.popleft()
        elif self.kept.get(block := oldest.blocks.pop()) is oldest:
            del self.kept[block]


class AssumedIndex:
    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Assumed] = {}
        self._sweep_s = 0.0
        self.resets: list[Callable[[WorkerId], None]] = []  # told of workers whose caches are gone

    def __repr__(self) -> str:
        num_blocks = sum(len(known.kept.keys() | known.pins) for known in self._workers.values())
        return f"AssumedIndex(workers={len(self._workers)}, blocks={num_blocks})"

    def add_worker(self, worker: WorkerId, *, keep_s: float, max_blocks: int) -> None:
        self.drop_worker(worker)
        self._workers[worker] = _Assumed(keep_s, max_blocks)

    def set_keep(self, worker: WorkerId, keep_s: float) -> None:
        """From now on its blocks are kept for so long; what was to be kept for longer is forgotten."""
        if known := self._workers.get(worker):
            if keep_s < known.keep_s:
                known.reset()
            known.keep_s = keep_s

    def drop_worker(self, worker: WorkerId) -> None:
        if self._workers.pop(worker, None):
            for reset in self.resets:
                reset(worker)

    def reset_worker(self, worker: WorkerId) -> None:
        """Its engine restarted: forget all but what is in flight there now."""
        self._workers[worker].reset()
        for reset in self.resets:
            reset(worker)

    def pin(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> None:
        if known := self._workers.get(worker):
            known.pin(hashes)

    def unpin(self, worker: WorkerId, hashes: Sequence[BlockHash], now: float, *, was_run: bool) -> None:
        """The end of a `pin`. Blocks of a request that did not reach its first token are not kept."""
        if known := self._workers.get(worker):
            known.unpin(hashes)
            if was_run and hashes:
                known.keep(hashes, now)

    def extend(self, hashes: Sequence[BlockHash], held: dict[WorkerId, int], now: float) -> None:
        """Lengthen each worker's overlap by the blocks that follow and are assumed to be there.

        `held` is what events tell, in leading blocks; pins are of what lies behind that only.
        """
        if now >= self._sweep_s:
            self._sweep(now)
        num = len(hashes)
        for worker, known in self._workers.items():
            if known.pins or known.kept:
                first = held.get(worker, 0)
                if first < num and known.has(hashes[first], now):
                    held[worker] = _depth(known, hashes, first + 1, now)

    def num_kept(self, worker: WorkerId) -> int:
        """Blocks that requests which have ended left there, as far as we know."""
        return len(self._workers[worker].kept)

    def num_pinned(self, worker: WorkerId) -> int:
        """Blocks of requests in flight; some may be kept as well."""
        return len(self._workers[worker].pins)

    def _sweep(self, now: float) -> None:
        """Forget what has expired, a portion at a time: what long prompts left expires all at once. A lookup
        looks at the time itself, so this is for memory alone."""
        self._sweep_s = now + SWEEP_EVERY_S
        for known in self._workers.values():
            room = MAX_EXPIRED
            while room and known.ends and known.ends[0].until <= now:
                known.forget_oldest()
                room -= 1


def _depth(known: _Assumed, hashes: Sequence[BlockHash], least: int, now: float) -> int:
    """Leading blocks of `hashes` that are held or assumed, at least `least`."""
    most = len(hashes)
    while least < most:
        middle = (least + most) // 2
        if known.has(hashes[middle], now):
            least = middle + 1
        else:
            most = middle
    return least
