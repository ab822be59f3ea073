"""Who heals streams that are BLIND: told of each request that goes to their workers, and of each answer.

An observer of the router's decisions (`core/decision.py`); what a request proves of a worker's cache is known
by that worker's `index/blind_recovery.py`. Where all streams are EXACT a decision costs a look at an empty
dict. Of
gateways that share Redis, who reads a worker's events heals it, and tells all others
(`replication/recovery_target.py`).
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from gateway.core.blocks import BlockHash, root_hash
from gateway.core.decision import Decided, Decision
from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId
from gateway.index.base import Index, RecoveryTarget
from gateway.index.blind_recovery import SETTLE_S, BlindRecovery

PAUSE_S = 0.01
MAX_ASKING = 4_096
"""Requests that ask for an announcement: one that never ends is no longer sent with it elsewhere."""


class RecoveryObserver:
    """`keep_s` is how long what an answer proved is believed in. `asking` has the ids of decisions whose
    requests are to be sent with `core.report.asking`."""

    def __init__(self, index: Index, *, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.asking: OrderedDict[str, None] = OrderedDict()
        self._index = index
        self._keep_s = keep_s
        self._clock = clock
        self._healings: dict[WorkerId, BlindRecovery] = {}
        self._blind: dict[WorkerId, BlindRecovery] = {}
        self._shelved: dict[WorkerId, RecoveryTarget] = {}

    def __repr__(self) -> str:
        return f"Healer({len(self._healings)} workers, {len(self._blind)} blind)"

    def open(
        self,
        worker: Worker,
        *,
        can_report: bool,
        shelve: Callable[[Index], RecoveryTarget | None] = lambda index: None,
    ) -> BlindRecovery:
        """For a worker that the index knows and whose events begin to be read; `shelve` tells where these
        go, if not there."""
        assert worker.block_size, "a worker of unknown block size has no events"
        shelved = shelve(self._index)
        recovery = BlindRecovery(
            worker.id,
            shelved or self._index,
            root=root_hash(worker.served[0].root),
            block_size=worker.block_size,
            can_report=can_report,
            keep_s=self._keep_s,
            clock=self._clock,
        )
        recovery.on_change = self._changed
        self._healings[worker.id] = recovery
        self._shelved.pop(worker.id, None)
        if shelved:
            self._shelved[worker.id] = shelved
        return recovery

    def close(self, recovery: BlindRecovery) -> None:
        """Its events are read no more."""
        if self._healings.get(recovery.worker) is recovery:
            del self._healings[recovery.worker]
            self._blind.pop(recovery.worker, None)
            self._shelved.pop(recovery.worker, None)

    def get(self, worker: WorkerId) -> BlindRecovery | None:
        return self._healings.get(worker)

    def items(self) -> Iterable[tuple[WorkerId, BlindRecovery]]:
        return self._healings.items()

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
        """A portion for each: what expired goes, what settled is placed. Whether more is due."""
        return any([self._tick(recovery) for recovery in self._blind.values()])

    def _learn(self, recovery: BlindRecovery, id: str, cached_tokens: int | None) -> None:
        if (shelved := self._shelved.get(recovery.worker)) is None:
            recovery.answered(id, cached_tokens)
        elif shelved.is_frozen:  # a snapshot is made: the next request will tell as much
            recovery.answered(id, None)
        else:
            recovery.answered(id, cached_tokens)
            shelved.settle()

    def _tick(self, recovery: BlindRecovery) -> bool:
        if (shelved := self._shelved.get(recovery.worker)) is None:
            return recovery.tick()
        has_more = not shelved.is_frozen and recovery.tick()
        if not shelved.is_frozen:
            shelved.settle()
        return has_more

    def _changed(self, recovery: BlindRecovery) -> None:
        if recovery.is_blind and self._healings.get(recovery.worker) is recovery:
            self._blind[recovery.worker] = recovery
        else:
            self._blind.pop(recovery.worker, None)
            if not self._blind:
                self.asking.clear()


async def keep_healing(healer: RecoveryObserver, interval_s: float = SETTLE_S) -> None:
    """A portion, a pause: requests come first."""
    while True:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_S if healer.tick() else interval_s)
