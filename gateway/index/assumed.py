"""What workers should hold because of what we sent them: no event has said so (yet).

Two uses of one mechanism:
- a request in flight will leave its prompt's blocks at its worker: its blocks are *pinned* until it
  ends, so that the next request, milliseconds later, sees them;
- a worker without events is known by nothing else: its blocks are kept for `keep_s` after the
  request, up to its cache size, the least recently sent first out and tails before heads.
For workers with events a second is kept, time enough for the event to arrive.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId

SWEEP_EVERY_S = 0.01
MAX_EXPIRED = 512
"""Blocks of one worker that a decision takes off at most, in a fraction of a millisecond."""


@dataclass(slots=True, eq=False)
class _Assumed:
    """`pins` counts requests in flight per block; `until` holds expiry times, soonest first. `num_both`
    counts blocks that are in both: asked for at each scrape, where comparing them would hold the loop."""

    keep_s: float
    max_blocks: int
    pins: dict[BlockHash, int] = field(default_factory=dict)
    until: OrderedDict[BlockHash, float] = field(default_factory=OrderedDict)
    num_both: int = 0

    def forget_oldest(self) -> None:
        self.num_both -= self.until.popitem(last=False)[0] in self.pins


class AssumedIndex:
    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Assumed] = {}
        self._sweep_s = 0.0

    def __repr__(self) -> str:
        num_blocks = sum(map(self.num_blocks, self._workers))
        return f"AssumedIndex(workers={len(self._workers)}, blocks={num_blocks})"

    def add_worker(self, worker: WorkerId, *, keep_s: float, max_blocks: int) -> None:
        self.drop_worker(worker)
        self._workers[worker] = _Assumed(keep_s, max_blocks)

    def set_keep(self, worker: WorkerId, keep_s: float) -> None:
        """From now on its blocks are kept for so long; what was to be kept for longer is forgotten."""
        if known := self._workers.get(worker):
            if keep_s < known.keep_s:
                self.reset_worker(worker)
            known.keep_s = keep_s

    def drop_worker(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)

    def reset_worker(self, worker: WorkerId) -> None:
        """Its engine restarted: forget all but what is in flight there now."""
        known = self._workers[worker]
        known.until.clear()
        known.num_both = 0

    def pin(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> None:
        if known := self._workers.get(worker):
            pins, until = known.pins, known.until
            for block in hashes:
                if (count := pins.get(block)) is None:
                    pins[block] = 1
                    known.num_both += block in until
                else:
                    pins[block] = count + 1

    def unpin(self, worker: WorkerId, hashes: Sequence[BlockHash], now: float, *, was_run: bool) -> None:
        """The end of a `pin`. Blocks of a request that did not reach its first token are not kept."""
        known = self._workers.get(worker)
        if known is None:
            return
        for block in reversed(hashes):  # the head last: it is evicted last
            left = known.pins.get(block, 0) - 1
            is_kept = block in known.until
            if left > 0:
                known.pins[block] = left
            elif left == 0:
                del known.pins[block]
                known.num_both -= is_kept
            if was_run:
                known.until[block] = now + known.keep_s
                known.until.move_to_end(block)
                known.num_both += not is_kept and left > 0
        while len(known.until) > known.max_blocks:
            known.forget_oldest()

    def extend(self, hashes: Sequence[BlockHash], held: dict[WorkerId, int], now: float) -> None:
        """Lengthen each worker's overlap by the blocks that follow and are assumed to be there.

        `held` is what events tell, in leading blocks; pins are of what lies behind that only.
        """
        if now >= self._sweep_s:
            self._sweep(now)
        num = len(hashes)
        for worker, known in self._workers.items():
            pins, until = known.pins, known.until
            if pins or until:
                depth = first = held.get(worker, 0)
                while depth < num and (hashes[depth] in pins or until.get(hashes[depth], 0.0) > now):
                    depth += 1
                if depth > first:
                    held[worker] = depth

    def num_blocks(self, worker: WorkerId) -> int:
        known = self._workers[worker]
        return len(known.pins) + len(known.until) - known.num_both

    def _sweep(self, now: float) -> None:
        """Forget what has expired, a portion at a time: what long prompts left expires all at once. A lookup
        looks at the time itself, so this is for memory alone."""
        self._sweep_s = now + SWEEP_EVERY_S
        for known in self._workers.values():
            room = MAX_EXPIRED
            while room and known.until and next(iter(known.until.values())) <= now:
                known.forget_oldest()
                room -= 1
