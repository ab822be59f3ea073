"""Observer of decisions and answers that drives the blind recovery of all workers.

What a request proves of a worker's cache is known by that worker's `index/blind_recovery.py`. Where all
streams are EXACT a decision costs a look at an empty dict. Among gateways that share Redis, the leader of a
worker recovers its stream, for all others (`replication/rank_store.py`).
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gateway.core.blocks import BlockHash, root_hash
from gateway.core.decision import Decided, Decision
from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId
from gateway.index.base import Index, RecoveryTarget
from gateway.index.blind_recovery import SETTLE_S, BlindRecovery

PAUSE_S: Final = 0.01
MAX_ASKING: Final = 4_096
"""Requests kept that ask for an announcement; beyond, the oldest no longer asks."""


class RecoveryObserver:
    """Observer for blind recovery. Blocks proven by an answer are kept for `keep_s`; `asking` has the ids of
    decisions with requests to be sent with `core.report.asking`."""

    def __init__(self, index: Index, *, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.asking: OrderedDict[str, None] = OrderedDict()
        self._index = index
        self._keep_s = keep_s
        self._clock = clock
        self._recoveries: dict[WorkerId, BlindRecovery] = {}
        self._blind: dict[WorkerId, BlindRecovery] = {}
        self._targets: dict[WorkerId, RecoveryTarget] = {}

    def __repr__(self) -> str:
        return f"RecoveryObserver({len(self._recoveries)} workers, {len(self._blind)} blind)"

    def open(
        self,
        worker: Worker,
        *,
        can_report: bool,
        target_of: Callable[[Index], RecoveryTarget | None] = lambda index: None,
    ) -> BlindRecovery:
        """Start recovery for a worker of the index when its events begin to be read; `target_of` returns
        where they go, if not into the index."""
        assert worker.block_size, "a worker of unknown block size has no events"
        target = target_of(self._index)
        recovery = BlindRecovery(
            worker.id,
            target or self._index,
            root=root_hash(worker.served[0].root),
            block_size=worker.block_size,
            can_report=can_report,
            keep_s=self._keep_s,
            clock=self._clock,
        )
        recovery.on_change = self._changed
        self._recoveries[worker.id] = recovery
        self._targets.pop(worker.id, None)
        if target:
            self._targets[worker.id] = target
        return recovery

    def close(self, recovery: BlindRecovery) -> None:
        """Stop recovery when the worker's events are read no more."""
        if self._recoveries.get(recovery.worker) is recovery:
            del self._recoveries[recovery.worker]
            self._blind.pop(recovery.worker, None)
            self._targets.pop(recovery.worker, None)

    def get(self, worker: WorkerId) -> BlindRecovery | None:
        return self._recoveries.get(worker)

    def items(self) -> Iterable[tuple[WorkerId, BlindRecovery]]:
        return self._recoveries.items()

    # requests ----------------------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        decision, prompt, blocks, request = decided.decision, decided.prompt, decided.blocks, decided.request
        if not self._blind:
            return
        recovery = self._blind.get(decision.worker.id)
        if recovery is None or not blocks:
            return
        if recovery.sent(decision.id, prompt.tokens, blocks, request.reads_cache):
            self.asking[decision.id] = None
            if len(self.asking) > MAX_ASKING:
                self.asking.popitem(last=False)

    def answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        if not self._blind:
            return
        self.asking.pop(decision.id, None)
        recovery = self._blind.get(decision.worker.id)
        if recovery is not None:
            self._learn(recovery, decision.id, usage.cached_tokens)

    def tick(self) -> bool:
        """Do a portion of each worker's due work. Returns True if more is due."""
        return any([self._tick(recovery) for recovery in self._blind.values()])

    def _learn(self, recovery: BlindRecovery, id: str, cached_tokens: int | None) -> None:
        if (target := self._targets.get(recovery.worker)) is None:
            recovery.answered(id, cached_tokens)
        elif target.is_frozen:  # a snapshot is being made: the next request will prove as much
            recovery.answered(id, None)
        else:
            recovery.answered(id, cached_tokens)
            target.settle()

    def _tick(self, recovery: BlindRecovery) -> bool:
        if (target := self._targets.get(recovery.worker)) is None:
            return recovery.tick()
        has_more = not target.is_frozen and recovery.tick()
        if not target.is_frozen:
            target.settle()
        return has_more

    def _changed(self, recovery: BlindRecovery) -> None:
        if recovery.is_blind and self._recoveries.get(recovery.worker) is recovery:
            self._blind[recovery.worker] = recovery
        else:
            self._blind.pop(recovery.worker, None)
            if not self._blind:
                self.asking.clear()


async def keep_recovering(recovery_observer: RecoveryObserver, interval_s: float = SETTLE_S) -> None:
    """Tick in portions with pauses, so that requests come first."""
    while True:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_S if recovery_observer.tick() else interval_s)
