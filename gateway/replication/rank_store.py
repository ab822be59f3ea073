"""Rank store of one endpoint: each rank's inventory and journal, where a gateway has an index.

`Subscription` applies events here as it would to an index; the effects of all events applied in one go are
one batch of the log.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import Stream, StreamState
from gateway.core.kv_events import EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, RecoveryIndex
from gateway.index.inventory import Inventory
from gateway.ingest.subscription import Subscription
from gateway.replication.journal import Journal
from gateway.replication.messages import AgentStatus


@dataclass(slots=True, eq=False)
class RankState:
    """Inventory and journal of one rank. `changed` are called when a reader may have something to send;
    `is_gone`: never again."""

    inventory: Inventory
    journal: Journal
    pending: list[KvEvent] = field(default_factory=list)
    changed: set[Callable[[], None]] = field(default_factory=set)
    is_gone: bool = False
    is_frozen: bool = False  # a thread reads the inventory: events wait

    def wake(self) -> None:
        for call in list(self.changed):
            call()


class RankStore:
    """Ranks of one endpoint. `now_us` returns the time in microseconds: epochs derive from it, each used
    once."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._last_epoch = 0
        self.ranks: dict[WorkerId, RankState] = {}

    def __repr__(self) -> str:
        return f"Shelf({self.ranks})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)
        if block_size:
            inventory = Inventory(root, block_size)
            self.ranks[worker] = RankState(inventory, Journal(inventory.snapshot, self.next_epoch()))

    def take_over(self, worker: WorkerId, inventory: Inventory, journal: Journal) -> RankState:
        """Add a rank with the inventory and journal of an earlier leader."""
        rank = self.ranks[worker] = RankState(inventory, journal)
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

    def withdraw_proofs(self, worker: WorkerId) -> None:
        """Remove blocks proven by an earlier leader, since their expiry is unknown here."""
        rank = self.ranks[worker]
        if removed := list(rank.inventory.proven()):
            rank.journal.append(
                [change for each in removed for change in rank.inventory.apply(each)], rank.journal.position
            )
            rank.wake()

    def settle(self, worker: WorkerId, stream: Stream, *, has_more: bool) -> None:
        """Log what was applied since the last call as a batch; `has_more`: the engine batch continues."""
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
    def subscription(self) -> "type[RankSubscription]":
        """Class of the subscription that applies events here."""
        return RankSubscription

    def next_epoch(self) -> int:
        self._last_epoch = max(self._last_epoch + 1, self._now_us())
        return self._last_epoch


class RankRecoveryTarget:
    """Blind recovery of a worker with events that go to a rank store: recovered blocks enter the journal, and
    so reach all followers. `settle` flushes what was applied as a batch, when no event is being applied.

    Lookups go to the rank store, which is updated at once; our own index follows a moment later and is asked
    only for workers with other groups beside full attention, of which the store has the engine hashes alone.
    """

    def __init__(
        self, worker: WorkerId, store: RankStore, index: RecoveryIndex, settle: Callable[[], None]
    ) -> None:
        self._worker = worker
        self._store = store
        self._index = index
        self.settle = settle

    def __repr__(self) -> str:
        return f"RankRecoveryTarget({self._worker}, frozen={self.is_frozen})"

    @property
    def _rank(self) -> RankState:
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


class RankSubscription(Subscription):
    """Subscription that settles its rank store after applying events."""

    def __init__(self, worker: WorkerId, *, index: RankStore, **options: Any) -> None:
        super().__init__(worker, index=index, **options)
        self.store = index

    def continue_work(self) -> bool:
        rank = self.store.ranks.get(self.worker)
        if rank and rank.is_frozen:
            return True
        has_more = super().continue_work()
        self.store.settle(self.worker, self.stream, has_more=has_more)
        return has_more

    def recovery_target(self, index: RecoveryIndex) -> RankRecoveryTarget:
        return RankRecoveryTarget(self.worker, self.store, index, self._settle)

    def _settle(self) -> None:
        """Log what was applied between events; the rest of a batch may be waiting."""
        self.store.settle(self.worker, self.stream, has_more=bool(self._todo))


_INCOMPLETE = (StreamState.BLIND, StreamState.UNPROVEN)


def _status(stream: Stream) -> AgentStatus:
    return AgentStatus(stream.state, (stream.reason or "") if stream.state in _INCOMPLETE else "")
