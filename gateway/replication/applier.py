"""What others tell of one worker, an agent or a log in Redis, on its way into our index."""

from collections.abc import Iterable

from gateway.core.block_limits import BlockLimits, block_limits
from gateway.core.event_stream import Reset
from gateway.core.kv_events import GPU, BlocksCleared, BlocksRemoved, KvEvent, RunStored
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import LINKS, BlockSets
from gateway.index.engine_hashes import keys_of
from gateway.replication.follower import Change, LogError


class TooMuch(LogError):
    """More blocks than are kept of one worker. They are forgotten already; whoever reported them is not to be
    asked again soon."""


class Applying:
    """A reset forgets what is assumed of the worker too: what was sent to it may be gone with the rest."""

    def __init__(
        self,
        worker: WorkerId,
        index: BlockSets,
        assumed: AssumedIndex,
        limits: BlockLimits | None = None,
    ) -> None:
        """`limits` are those of who reads the worker's own events."""
        self._limits = (limits or block_limits(None)).of_others
        self._worker = worker
        self._index = index
        self._assumed = assumed
        self._proven: set[int] = set()

    def __repr__(self) -> str:
        return f"Applying({self._worker})"

    def apply(self, changes: Iterable[Change]) -> None:
        """All of them, in order. Raises LogError where blocks could not be placed: the index is not what was
        told then, and whoever follows must forget where it was; TooMuch where nothing more is to be taken."""
        before = self._num_misplaced()
        for change in changes:
            if isinstance(change, Reset):
                self.reset()
            else:
                self._note(change)
                self._index.apply(self._worker, change)
        if self._num_misplaced() > before:
            raise LogError("it tells of blocks whose parents it never told, or of another block size")
        self._check_limits()

    def _check_limits(self) -> None:
        num_kept = self._index.num_kept
        on_gpu = num_kept(self._worker, on_gpu=True) + len(self._proven)
        offloaded = num_kept(self._worker, on_gpu=False)
        if (reason := self._limits.exceeded(on_gpu, offloaded)) is not None:
            self.reset()
            raise TooMuch(reason)

    def reset(self) -> None:
        self._index.reset_worker(self._worker)
        self._assumed.reset_worker(self._worker)
        self._proven.clear()

    def take_back_proofs(self) -> None:
        """What answers proved (`index/proofs.py`): whoever knows when it ends tells nothing any more."""
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
        return applied.num_orphans + applied.num_mismatched
