"""A worker as `index/blind_recovery.py` sees it while its events go to a shelf: what it finds out goes into
the
journal, and by that to all who follow.

What is known is asked of the shelf, where it is at once; our own index follows a moment later. It is asked
only for workers with other groups beside full attention, of which the shelf knows the names alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, RecoveryIndex

if TYPE_CHECKING:
    from gateway.replication.rank_store import Rank, Shelf


class RankRecoveryTarget:
    """Of one worker; `settle` makes a batch of what was applied, when no event is being carried out."""

    def __init__(
        self, worker: WorkerId, shelf: "Shelf", index: RecoveryIndex, settle: Callable[[], None]
    ) -> None:
        self._worker = worker
        self._shelf = shelf
        self._index = index
        self.settle = settle

    def __repr__(self) -> str:
        return f"RankRecoveryTarget({self._worker}, frozen={self.is_frozen})"

    @property
    def _rank(self) -> "Rank":
        return self._shelf.ranks[self._worker]

    @property
    def is_frozen(self) -> bool:
        """Nothing may be applied now."""
        return self._rank.is_frozen

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        self._shelf.apply(worker, event)

    def applied(self, worker: WorkerId) -> Applied:
        return self._shelf.applied(worker)

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        return self._rank.inventory.find(name)

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        inventory = self._rank.inventory
        depth = inventory.leading(hashes)
        if depth and inventory.has_groups:
            depth = min(depth, self._index.overlap(hashes).get(self._worker, 0))
        return {self._worker: depth} if depth else {}
