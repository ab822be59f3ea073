"""Blocks that workers are assumed to hold because of requests sent to them, before or without KV events.

Two uses of one mechanism:
- a request in flight will leave its prompt's blocks at its worker: they are *pinned* until it ends, so
  that the next request, milliseconds later, sees them;
- for a worker without events this is the only knowledge: its blocks are kept for `keep_s` after the
  request, up to its cache size; the least recently sent go first, tails before heads.
For workers with events blocks are kept for a second, time enough for the event to arrive.
"""

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.assumed_tree import AssumedTree

SWEEP_EVERY_S: Final = 0.01
MAX_EXPIRED: Final = 32
"""Requests per worker that one lookup expires at most: a fraction of a millisecond."""


class AssumedIndex:
    """Assumed blocks by worker. A request's blocks are those of its prompt behind the `first` ones, which
    events reported; `pin` and `unpin` get the same."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, AssumedTree] = {}
        self._sweep_s = 0.0
        self.resets: list[Callable[[WorkerId], None]] = []  # observers of workers that lost their cache

    def __repr__(self) -> str:
        num_pinned, num_kept = (sum(map(count, self._workers)) for count in (self.num_pinned, self.num_kept))
        return f"AssumedIndex(workers={len(self._workers)}, pinned={num_pinned}, kept={num_kept})"

    def add_worker(self, worker: WorkerId, *, keep_s: float, max_blocks: int) -> None:
        self.drop_worker(worker)
        self._workers[worker] = AssumedTree(keep_s, max_blocks)

    def set_keep(self, worker: WorkerId, keep_s: float) -> None:
        """Change how long blocks are kept from now on; a shorter time also drops what is kept already."""
        if known := self._workers.get(worker):
            if keep_s < known.keep_s:
                known.reset()
            known.keep_s = keep_s

    def drop_worker(self, worker: WorkerId) -> None:
        if known := self._workers.pop(worker, None):
            known.close()
            for reset in self.resets:
                reset(worker)

    def reset_worker(self, worker: WorkerId) -> None:
        """Forget all blocks of a restarted engine but those pinned by requests in flight."""
        self._workers[worker].reset()
        for reset in self.resets:
            reset(worker)

    def pin(self, worker: WorkerId, hashes: Sequence[BlockHash], first: int = 0) -> None:
        known = self._workers.get(worker)
        if known is not None and first < len(hashes):
            known.pin(hashes, first)

    def unpin(
        self, worker: WorkerId, hashes: Sequence[BlockHash], now: float, first: int = 0, *, was_run: bool
    ) -> None:
        """End a `pin`. Blocks of a request that did not reach its first token are not kept."""
        known = self._workers.get(worker)
        if known is not None and first < len(hashes):
            if was_run:
                known.keep(hashes, first, now)
            known.unpin(hashes, first)

    def extend(self, hashes: Sequence[BlockHash], overlap: dict[WorkerId, int], now: float) -> None:
        """Lengthen each worker's overlap by the blocks that follow and are assumed to be there.

        `overlap` counts the leading blocks known from events and is changed in place; pins matter only behind
        those.
        """
        if now >= self._sweep_s:
            self._sweep_s = now + SWEEP_EVERY_S
            for known in self._workers.values():
                known.expire(now, MAX_EXPIRED)
        for worker, known in self._workers.items():
            if known.num_pinned or known.num_kept:
                first = overlap.get(worker, 0)
                depth = known.depth(hashes, first, now)
                if depth > first:
                    overlap[worker] = depth

    def num_kept(self, worker: WorkerId) -> int:
        """Number of blocks that finished requests are assumed to have left at the worker."""
        return self._workers[worker].num_kept

    def num_pinned(self, worker: WorkerId) -> int:
        """Number of blocks pinned by requests in flight; some may be kept as well."""
        return self._workers[worker].num_pinned
