"""The ranks of one endpoint: what each holds, and its journal. What a gateway has an index for.

`Subscription` applies events here as it would to an index; what came of those that it carried out in one
go is one batch of the log.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import Stream, StreamState
from gateway.core.kv_events import KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, RecoveryIndex
from gateway.index.inventory import Inventory
from gateway.ingest.subscription import Subscription
from gateway.replication.journal import Journal
from gateway.replication.messages import Status
from gateway.replication.recovery_target import RankRecoveryTarget


@dataclass(slots=True, eq=False)
class Rank:
    """`changed` are called when a reader may have something to tell; `is_gone`: nothing ever again."""

    inventory: Inventory
    journal: Journal
    pending: list[KvEvent] = field(default_factory=list)
    changed: set[Callable[[], None]] = field(default_factory=set)
    is_gone: bool = False
    is_frozen: bool = False  # somebody reads the inventory, in a thread: what comes waits

    def wake(self) -> None:
        for call in list(self.changed):
            call()


class Shelf:
    """`now_us` is the time in microseconds: epochs are taken from it, and never twice."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._last_epoch = 0
        self.ranks: dict[WorkerId, Rank] = {}

    def __repr__(self) -> str:
        return f"Shelf({self.ranks})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        if block_size:
            inventory = Inventory(root, block_size)
            self.ranks[worker] = Rank(inventory, Journal(inventory.snapshot, self.next_epoch()))

    def take_over(self, worker: WorkerId, inventory: Inventory, journal: Journal) -> Rank:
        """What another shelf had."""
        rank = self.ranks[worker] = Rank(inventory, journal)
        return rank

    def drop_worker(self, worker: WorkerId) -> None:
        if rank := self.ranks.pop(worker, None):
            rank.is_gone = True
            rank.wake()

    def reset_worker(self, worker: WorkerId) -> None:
        rank = self.ranks[worker]
        rank.inventory.reset()
        rank.pending.clear()
        rank.journal.begin(self.next_epoch())

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        rank = self.ranks[worker]
        rank.pending += rank.inventory.apply(event)

    def applied(self, worker: WorkerId) -> Applied:
        return self.ranks[worker].inventory.applied

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        return self.ranks[worker].inventory.num_kept(on_gpu)

    def take_back_proofs(self, worker: WorkerId) -> None:
        """What another proved, of which we do not know when it ends."""
        rank = self.ranks[worker]
        if removed := list(rank.inventory.proven()):
            rank.journal.append(
                [told for each in removed for told in rank.inventory.apply(each)], rank.journal.position
            )
            rank.wake()

    def settle(self, worker: WorkerId, stream: Stream, *, has_more: bool) -> None:
        """What was applied since the last time is a batch; `has_more`: of the same engine batch."""
        rank = self.ranks.get(worker)
        if rank is None:
            return
        journal = rank.journal
        changes, rank.pending = rank.pending, []
        position = None if has_more else stream.position
        is_changed = bool(changes) or (position is not None and position != journal.position)
        if is_changed:
            journal.append(changes, position)
        if not has_more:
            before, journal.status = journal.status, _status(stream)
            is_changed = is_changed or journal.status != before
        if is_changed:
            rank.wake()

    @property
    def subscription(self) -> "type[ShelfSubscription]":
        """What applies events here."""
        return ShelfSubscription

    def next_epoch(self) -> int:
        self._last_epoch = max(self._last_epoch + 1, self._now_us())
        return self._last_epoch


class ShelfSubscription(Subscription):
    """Tells its shelf when something was carried out."""

    def __init__(self, worker: WorkerId, *, index: Shelf, **options: Any) -> None:
        super().__init__(worker, index=index, **options)
        self.shelf = index

    def go_on(self) -> bool:
        rank = self.shelf.ranks.get(self.worker)
        if rank and rank.is_frozen:
            return True
        has_more = super().go_on()
        self.shelf.settle(self.worker, self.stream, has_more=has_more)
        return has_more

    def shelved(self, index: RecoveryIndex) -> RankRecoveryTarget:
        return RankRecoveryTarget(self.worker, self.shelf, index, self._settle)

    def _settle(self) -> None:
        """What was applied between events; the rest of a batch may be waiting."""
        self.shelf.settle(self.worker, self.stream, has_more=bool(self._todo))


def _status(stream: Stream) -> Status:
    return Status(stream.state, (stream.blind_reason or "") if stream.state is StreamState.BLIND else "")
