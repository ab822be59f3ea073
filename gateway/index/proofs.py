"""Blocks that a worker is proven to hold, under engine hashes that nobody has told us.

They lie in the index in a place of their own (group LINKS of the GPU), each under our own hash: so they are
found like any block, and blocks whose engine hash is known can be placed behind them. No removal will ever
name them. They go when their time is over, when their engine hash becomes known, or when an answer proves
them gone.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU, BlocksRemoved, RunStored
from gateway.core.worker import WorkerId
from gateway.index.base import LINKS, Healed

MAX_PROVEN = 16_384
MAX_LISTED = 8 * MAX_PROVEN
"""Blocks in all proofs, 8 bytes each: many may begin with the same links. Searched in a millisecond."""


@dataclass(slots=True, eq=False)
class HealCounts:
    """`num_placed` blocks of runs whose parent was unknown, `num_proven` by answers (some since expired),
    `num_withdrawn` of these that answers proved to be gone, `num_reports` announcements asked for."""

    num_placed: int = 0
    num_proven: int = 0
    num_withdrawn: int = 0
    num_reports: int = 0


class Proofs:
    """Of one worker in `index`; `root` is the parent of its first blocks."""

    def __init__(self, worker: WorkerId, index: Healed, root: BlockHash, max_links: int = MAX_PROVEN) -> None:
        self._worker = worker
        self._index = index
        self._root = root
        self._max_links = max_links
        self._until: dict[BlockHash, float] = {}
        self._proofs: OrderedDict[BlockHash, tuple[float, list[BlockHash]]] = OrderedDict()  # by the last one
        self._num_listed = 0

    def __repr__(self) -> str:
        return f"Proofs({len(self)} blocks, {len(self._proofs)} proofs)"

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._until

    def prove(self, chain: Sequence[BlockHash], until: float) -> int:
        """A prompt's leading blocks are there; how many of them were unknown."""
        known = self._index.overlap(chain).get(self._worker, 0)
        num_new = 0
        if known < len(chain):
            new = self.lay(chain)
            told = set(chain[:known])
            self.drop([block for block in new if block in told])
            num_new = sum(block not in told for block in new)
        linked = [block for block in chain if block in self._until]
        if linked:
            self._until.update(dict.fromkeys(linked, until))
            for block in linked:
                if block in self._proofs:  # of the same chain, up to there
                    self._take(block)
            self._proofs[linked[-1]] = until, linked
            self._num_listed += len(linked)
            while len(self._until) > self._max_links or self._num_listed > MAX_LISTED:
                self._end_oldest()
        return num_new

    def lay(self, chain: Sequence[BlockHash]) -> list[BlockHash]:
        """Make links of all of a prompt's leading blocks that are none yet, so that others find their place
        behind them; which these were, for the caller to prove or to drop."""
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
        """Those among `blocks` that are links are none any more; how many."""
        linked = [block for block in blocks if self._until.pop(block, None) is not None]
        if linked:
            self._index.apply(self._worker, BlocksRemoved(linked, GPU, LINKS))
        return len(linked)

    def withdraw(self, missing: BlockHash) -> int:
        """This block was not there: nor is what was proven behind it. How many these were."""
        gone: list[BlockHash] = []
        for _, proven in self._proofs.values() if missing in self._until else ():
            if missing in proven:
                gone += proven[proven.index(missing) :]
        return self.drop(gone)

    def expire(self, now: float) -> bool:
        """The oldest proof ends if its time is over; whether it was."""
        if not self._proofs or next(iter(self._proofs.values()))[0] > now:
            return False
        self._end_oldest()
        return True

    def drop_all(self) -> None:
        self.drop(list(self._until))
        self.clear()

    def clear(self) -> None:
        """The index has forgotten them already."""
        self._until.clear()
        self._proofs.clear()
        self._num_listed = 0

    def _take(self, last: BlockHash) -> tuple[float, list[BlockHash]]:
        proof = self._proofs.pop(last)
        self._num_listed -= len(proof[1])
        return proof

    def _end_oldest(self) -> None:
        """What no later answer has proven too is a link no more."""
        until, blocks = self._take(next(iter(self._proofs)))
        self.drop([block for block in blocks if self._until.get(block, math.inf) <= until])


def stretches(wanted: Sequence[bool]) -> list[tuple[int, int]]:
    """First and end of each stretch of what is wanted."""
    found: list[tuple[int, int]] = []
    end = 0
    for is_wanted, group in groupby(wanted):
        first, end = end, end + sum(1 for _ in group)
        if is_wanted:
            found.append((first, end))
    return found
