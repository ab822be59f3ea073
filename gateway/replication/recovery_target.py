"""Blind recovery of a worker with events that go to a rank store: recovered blocks enter the journal, and so
reach all followers.

Lookups go to the rank store, which is updated at once; our own index follows a moment later and is asked only
for workers with other groups beside full attention, of which the store has the engine hashes alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, RecoveryIndex

if TYPE_CHECKING:
    from gateway.replication.rank_store import RankState, RankStore


class RankRecoveryTarget:
    """Recovery target of one worker; `settle` flushes what was applied as a batch, when no event is being
    applied."""

    def __init__(
        self, worker: WorkerId, store: "RankStore", index: RecoveryIndex, settle: Callable[[], None]
    ) -> None:
        self._worker = worker
        self._store = store
        self._index = index
        self.settle = settle

    def __repr__(self) -> str:
        return f"RankRecoveryTarget({self._worker}, frozen={self.is_frozen})"

    @property
    def _rank(self) -> "RankState":
        return self._store.ranks[self._worker]

    @property
    def is_frozen(self) -> bool:
        """True while nothing may be applied."""
        return self._rank.is_frozen

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        self._store.apply(worker, event)

    def applied(self, worker: WorkerId) -> Applied:
        return self._store.applied(worker)

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        return self._rank.inventory.find(name)

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        inventory = self._rank.inventory
        depth = inventory.leading(hashes)
        if depth and inventory.has_groups:
            depth = min(depth, self._index.overlap(hashes).get(self._worker, 0))
        return {self._worker: depth} if depth else {}
