"""Blocks that a worker is proven to hold, under engine hashes that are not known.

They lie in the index in a tier of their own (group LINKS of the GPU), each under our own hash: so they are
found like any block, and blocks with known engine hashes can be placed behind them. No removal will ever name
them. They go when they expire, when their engine hash becomes known, or when an answer proves them gone.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU, BlocksRemoved, RunStored
from gateway.core.worker import WorkerId
from gateway.index.base import LINKS, RecoveryIndex

MAX_PROVEN: Final = 16_384
MAX_LISTED: Final = 8 * MAX_PROVEN
"""Blocks in all proofs, 8 bytes each: many may begin with the same links. Searched in a millisecond."""


@dataclass(slots=True, eq=False)
class RecoveryCounts:
    """Counters of a recovering BLIND stream.

    `num_placed` blocks of runs that had an unknown parent, `num_proven` by answers (some expired since),
    `num_withdrawn` of these that answers proved to be gone, `num_reports` announcements asked for.
    """

    num_placed: int = 0
    num_proven: int = 0
    num_withdrawn: int = 0
    num_reports: int = 0


class Proofs:
    """Proven blocks of one worker in `index`; `root` is the parent of its first blocks."""

    def __init__(
        self, worker: WorkerId, index: RecoveryIndex, root: BlockHash, max_links: int = MAX_PROVEN
    ) -> None:
        self._worker = worker
        self._index = index
        self._root = root
        self._max_links = max_links
        self._until: dict[BlockHash, float] = {}
        self._proofs: OrderedDict[BlockHash, tuple[float, list[BlockHash]]] = (
            OrderedDict()
        )  # by the last block
        self._num_listed = 0

    def __repr__(self) -> str:
        return f"Proofs({len(self)} blocks, {len(self._proofs)} proofs)"

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._until

    def prove(self, chain: Sequence[BlockHash], until: float) -> int:
        """Credit a prompt's leading blocks until the time `until`; returns how many of them were unknown."""
        known = self._index.overlap(chain).get(self._worker, 0)
        num_new = 0
        if known < len(chain):
            new = self.lay(chain)
            already = set(chain[:known])
            self.drop([block for block in new if block in already])
            num_new = sum(block not in already for block in new)
        linked = [block for block in chain if block in self._until]
        if linked:
            self._until.update(dict.fromkeys(linked, until))
            for block in linked:
                if block in self._proofs:  # a prefix of the same chain
                    self._pop(block)
            self._proofs[linked[-1]] = until, linked
            self._num_listed += len(linked)
            while len(self._until) > self._max_links or self._num_listed > MAX_LISTED:
                self._end_oldest()
        return num_new

    def lay(self, chain: Sequence[BlockHash]) -> list[BlockHash]:
        """Add links for all blocks of `chain` that are unknown, so that others find their place behind them;
        returns these, for the caller to prove or to drop."""
        new: list[BlockHash] = []
        for first, end in stretches([block not in self._until for block in chain]):
            run = list(chain[first:end])
            before = chain[first - 1] if first else self._root
            link = before if first else None
            self._index.apply(self._worker, RunStored(run, run, link, before, GPU, LINKS))
            self._until.update(dict.fromkeys(run, 0.0))
            new += run
        return new

    def drop(self, blocks: Sequence[BlockHash]) -> int:
        """Remove the links among `blocks`; returns how many there were."""
        linked = [block for block in blocks if self._until.pop(block, None) is not None]
        if linked:
            self._index.apply(self._worker, BlocksRemoved(linked, GPU, LINKS))
        return len(linked)

    def withdraw(self, missing: BlockHash) -> int:
        """Remove all that was proven from the block `missing` on, which was not there; returns how many
        blocks."""
        gone: list[BlockHash] = []
        for _, proven in self._proofs.values() if missing in self._until else ():
            if missing in proven:
                gone += proven[proven.index(missing) :]
        return self.drop(gone)

    def expire(self, now: float) -> bool:
        """Drop the oldest proof if it has expired; returns True if it had."""
        if not self._proofs or next(iter(self._proofs.values()))[0] > now:
            return False
        self._end_oldest()
        return True

    def drop_all(self) -> None:
        self.drop(list(self._until))
        self.clear()

    def clear(self) -> None:
        """Forget all proofs, which the index has forgotten already."""
        self._until.clear()
        self._proofs.clear()
        self._num_listed = 0

    def _pop(self, last: BlockHash) -> tuple[float, list[BlockHash]]:
        proof = self._proofs.pop(last)
        self._num_listed -= len(proof[1])
        return proof

    def _end_oldest(self) -> None:
        """Drop the oldest proof, and its links that no later answer has proven too."""
        until, blocks = self._pop(next(iter(self._proofs)))
        self.drop([block for block in blocks if self._until.get(block, math.inf) <= until])


def stretches(wanted: Sequence[bool]) -> list[tuple[int, int]]:
    """Return first and end of each stretch of True."""
    found: list[tuple[int, int]] = []
    end = 0
    for is_wanted, group in groupby(wanted):
        first, end = end, end + sum(1 for _ in group)
        if is_wanted:
            found.append((first, end))
    return found
