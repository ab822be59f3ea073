"""Assumed blocks of one worker: a tree of runs of blocks, pinned by requests in flight or kept after them.

    prompt   ─ first block known from events ─┬─ pinned or kept from here on ─┐
    tree     root ── run ─────────────────────┴── run ──┬─ run                │ runs are split where one of
                                                        └─ run                ┘ the requests begins or ends

Block hashes are chained: where one block of a run is a prompt's, all before it are. So a run is compared by
its last block, found to differ by bisection, and changed as a whole, however long it is. A long prompt has
thousands of blocks and a few runs.
"""

from collections import deque
from collections.abc import Sequence

from gateway.core.blocks import BlockHash


class _AssumedRun:
    """Blocks from position `start` on, between two places where prompts part, begin or end to be assumed.

    `num_pins` counts the requests in flight that will leave them; `kept` is the ended request that used them
    last. Runs without either lead to others only."""

    __slots__ = ("parent", "start", "blocks", "behind", "num_pins", "kept")

    def __init__(self, parent: "_AssumedRun | None", start: int, blocks: Sequence[BlockHash]) -> None:
        self.parent = parent
        self.start = start
        self.blocks = blocks
        self.behind: dict[BlockHash, _AssumedRun] = {}
        self.num_pins = 0
        self.kept: _EndedRequest | None = None

    def __repr__(self) -> str:
        return f"_AssumedRun({self.start}, {len(self.blocks)} blocks, {self.num_pins} pins, {self.kept})"

    def is_assumed(self, now: float) -> bool:
        return self.num_pins > 0 or (self.kept is not None and self.kept.until > now)

    def num_shared(self, hashes: Sequence[BlockHash]) -> int:
        """Leading blocks that are those of `hashes` from `start` on; the first one is."""
        blocks, start = self.blocks, self.start
        least, most = 1, min(len(blocks), len(hashes) - start)
        if blocks[most - 1] == hashes[start + most - 1]:
            return most
        while least < most:
            middle = (least + most + 1) // 2
            if blocks[middle - 1] == hashes[start + middle - 1]:
                least = middle
            else:
                most = middle - 1
        return least

    def split(self, num: int) -> "_AssumedRun":
        """Give the first `num` blocks to a new run before this one. Returns that."""
        head = _AssumedRun(self.parent, self.start, self.blocks[:num])
        head.num_pins, head.kept = self.num_pins, self.kept
        if self.parent is not None:
            self.parent.behind[self.blocks[0]] = head
        self.parent, self.start, self.blocks = head, self.start + num, self.blocks[num:]
        head.behind[self.blocks[0]] = self
        return head

    def prune(self) -> None:
        """Remove the run, and those before it, as far as nothing is assumed by them or behind them."""
        run = self
        while (parent := run.parent) is not None and not (run.num_pins or run.kept or run.behind):
            del parent.behind[run.blocks[0]]
            run.parent = None
            run = parent


class _EndedRequest:
    """Ended request of which blocks from `first` to the end of `last` are kept `until` a time; later requests
    may have used some of them too."""

    __slots__ = ("until", "first", "last")

    def __init__(self, until: float, first: int, last: _AssumedRun) -> None:
        self.until = until
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"_EndedRequest(until {self.until:g})"


class AssumedTree:
    """Assumed blocks of a worker. Blocks of ended requests are kept for `keep_s`, `max_blocks` at most: the
    least recently sent go first, tails before heads."""

    __slots__ = ("keep_s", "num_pinned", "num_kept", "_max_blocks", "_root", "_ends")

    def __init__(self, keep_s: float, max_blocks: int) -> None:
        self.keep_s = keep_s
        self.num_pinned = self.num_kept = 0
        self._max_blocks = max_blocks
        self._root = _AssumedRun(None, 0, ())
        self._ends: deque[_EndedRequest] = deque()  # the one that expires soonest first

    def __repr__(self) -> str:
        return f"AssumedTree({self.num_pinned} pinned, {self.num_kept} kept)"

    def depth(self, hashes: Sequence[BlockHash], first: int, now: float) -> int:
        """Count the leading blocks that are held or assumed; `first` of them are held."""
        run, at, num = self._root, 0, len(hashes)
        while at < num:
            found = run.behind.get(hashes[at])
            if found is None:
                break
            end = at + len(found.blocks)
            if end > first and not found.is_assumed(now):
                break
            if (shared := found.num_shared(hashes)) < end - at:
                at += shared
                break
            run, at = found, end
        return max(first, at)

    def pin(self, hashes: Sequence[BlockHash], first: int) -> None:
        """Assume the blocks from `first` on until `unpin`."""
        self._run_to(hashes, first)
        run = self._run_to(hashes, len(hashes))
        while run.parent is not None and run.start >= first:
            if not run.num_pins:
                self.num_pinned += len(run.blocks)
            run.num_pins += 1
            run = run.parent

    def unpin(self, hashes: Sequence[BlockHash], first: int) -> None:
        runs = self._runs(hashes, first)
        for run in runs:
            if run.num_pins:
                run.num_pins -= 1
                if not run.num_pins:
                    self.num_pinned -= len(run.blocks)
        if runs:
            runs[-1].prune()

    def keep(self, hashes: Sequence[BlockHash], first: int, now: float) -> None:
        """Assume blocks that are pinned for `keep_s` more."""
        runs = self._runs(hashes, first)
        if not runs:
            return
        kept = _EndedRequest(now + self.keep_s, first, runs[-1])
        for run in runs:
            if run.kept is None:
                self.num_kept += len(run.blocks)
            run.kept = kept
        self._ends.append(kept)
        while self.num_kept > self._max_blocks:
            self._forget_oldest(self.num_kept - self._max_blocks)

    def is_pinned(self, hashes: Sequence[BlockHash], position: int) -> bool:
        run = self._run_at(hashes, position)
        return run is not None and run.num_pins > 0

    def kept_until(self, hashes: Sequence[BlockHash], position: int) -> float:
        """Return when a block of a prompt expires; 0 for one that is not kept."""
        run = self._run_at(hashes, position)
        return run.kept.until if run is not None and run.kept is not None else 0.0

    def expire(self, now: float, most: int) -> None:
        """Drop the blocks of the oldest requests, `most` at once, that have expired. Lookups check the time
        themselves, so this only frees memory."""
        while most and self._ends and self._ends[0].until <= now:
            self._forget_oldest(self.num_kept)
            most -= 1

    def reset(self) -> None:
        """Forget all blocks that are not pinned."""
        while self._ends:
            self._forget_oldest(self.num_kept)

    def close(self) -> None:
        """Take the runs apart: they refer to each other, and would never be collected."""
        runs = [self._root]
        while runs:
            run = runs.pop()
            runs += run.behind.values()
            run.parent = run.kept = None
            run.behind.clear()
        self._ends.clear()
        self.num_pinned = self.num_kept = 0

    # runs --------------------------------------------------------------------------------------

    def _forget_oldest(self, most: int) -> None:
        """Drop `most` blocks at the end of the request that expires next, unless a later request used them
        too."""
        oldest = self._ends[0]
        run, last = oldest.last, oldest.last
        while run.parent is not None and run.start >= oldest.first:
            if run.kept is oldest:
                if most == 0:
                    oldest.last = run
                    return last.prune()
                if (left := len(run.blocks) - most) > 0:
                    oldest.last = run.split(left)
                    self._forget(run)
                    return last.prune()
                most -= len(run.blocks)
                self._forget(run)
            run = run.parent
        self._ends.popleft()
        return last.prune()

    def _forget(self, run: _AssumedRun) -> None:
        run.kept = None
        self.num_kept -= len(run.blocks)

    def _run_to(self, hashes: Sequence[BlockHash], end: int) -> _AssumedRun:
        """The run that ends at a position, with those before it; made where it is missing."""
        run = self._root
        while (at := run.start + len(run.blocks)) < end:
            found = run.behind.get(hashes[at])
            if found is None:
                found = run.behind[hashes[at]] = _AssumedRun(run, at, hashes[at:end])
            elif (shared := min(found.num_shared(hashes), end - at)) < len(found.blocks):
                found = found.split(shared)
            run = found
        return run

    def _runs(self, hashes: Sequence[BlockHash], first: int) -> list[_AssumedRun]:
        """The runs of a pinned prompt; without those that were dropped with their worker."""
        found: list[_AssumedRun] = []
        run = self._root
        while (at := run.start + len(run.blocks)) < len(hashes):
            behind = run.behind.get(hashes[at])
            if behind is None or behind.num_shared(hashes) < len(behind.blocks):
                break
            run = behind
            if run.start >= first:
                found.append(run)
        return found

    def _run_at(self, hashes: Sequence[BlockHash], position: int) -> _AssumedRun | None:
        """The run that has a block of a prompt."""
        run = self._root
        while (at := run.start + len(run.blocks)) <= position:
            found = run.behind.get(hashes[at])
            if found is None or at + found.num_shared(hashes) <= min(position, at + len(found.blocks) - 1):
                return None
            run = found
        return run
