"""Application of replicated updates of one worker (from an agent or a log in Redis) to the index."""

from collections.abc import Iterable

from gateway.core.block_limits import BlockLimits, block_limits
from gateway.core.event_stream import Reset
from gateway.core.kv_events import GPU, BlocksCleared, BlocksRemoved, KvEvent, RunStored
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import LINKS, BlockSets
from gateway.index.engine_hashes import keys_of
from gateway.replication.follower import Change, LogError


class LimitExceeded(LogError):
    """More blocks reported than may be kept of one worker; they are dropped, and its source should rest for a
    while."""


class Applier:
    """Applies replicated changes of one worker to the index. A reset also drops its assumed blocks, which may
    be gone too."""

    def __init__(
        self,
        worker: WorkerId,
        index: BlockSets,
        assumed: AssumedIndex,
        limits: BlockLimits | None = None,
    ) -> None:
        """Create an applier; `limits` are those of a gateway that reads the worker's own events."""
        self._limits = (limits or block_limits(None)).of_others
        self._worker = worker
        self._index = index
        self._assumed = assumed
        self._proven: set[int] = set()

    def __repr__(self) -> str:
        return f"Applying({self._worker})"

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes in order.

        Raises LogError where blocks could not be placed: the index then differs from the log, and the
        follower must start over. Raises LimitExceeded where nothing more may be applied.
        """
        before = self._num_misplaced()
        for change in changes:
            if isinstance(change, Reset):
                self.reset()
            else:
                self._note(change)
                self._index.apply(self._worker, change)
        if self._num_misplaced() > before:
            raise LogError("unknown parent blocks, or another block size")
        self._check_limits()

    def _check_limits(self) -> None:
        num_kept = self._index.num_kept
        on_gpu = num_kept(self._worker, on_gpu=True) + len(self._proven)
        offloaded = num_kept(self._worker, on_gpu=False)
        if (reason := self._limits.exceeded(on_gpu, offloaded)) is not None:
            self.reset()
            raise LimitExceeded(reason)

    def reset(self) -> None:
        self._index.reset_worker(self._worker)
        self._assumed.reset_worker(self._worker)
        self._proven.clear()

    def withdraw_proofs(self) -> None:
        """Remove blocks proven by answers (`index/proofs.py`), when their expiry will not be reported any
        more."""
        if self._proven:
            self._index.apply(self._worker, BlocksRemoved(list(self._proven), GPU, LINKS))
            self._proven.clear()

    def _note(self, change: KvEvent) -> None:
        match change:
            case RunStored(group_idx=group) if group == LINKS:
                self._proven.update(change.blocks)
            case BlocksRemoved(group_idx=group) if group == LINKS:
                self._proven.difference_update(keys_of(change.engine_hashes))
            case BlocksCleared():
                self._proven.clear()

    def _num_misplaced(self) -> int:
        applied = self._index.applied(self._worker)
        return applied.num_orphans + applied.num_mismatched + sum(applied.unplaced.values())
