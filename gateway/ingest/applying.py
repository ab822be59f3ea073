"""What others tell of one worker, an agent or a log in Redis, on its way into our index."""

from collections.abc import Iterable

from gateway.core.follower import Change, LogError
from gateway.core.stream import Reset
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import BlockSets


class Applying:
    """A reset forgets what is assumed of the worker too: what was sent to it may be gone with the rest."""

    def __init__(self, worker: WorkerId, index: BlockSets, assumed: AssumedIndex) -> None:
        self._worker = worker
        self._index = index
        self._assumed = assumed

    def __repr__(self) -> str:
        return f"Applying({self._worker})"

    def apply(self, changes: Iterable[Change]) -> None:
        """All of them, in order. Raises LogError where blocks could not be placed: the index is not what was
        told then, and whoever follows must forget where it was."""
        before = self._num_misplaced()
        for change in changes:
            if isinstance(change, Reset):
                self.reset()
            else:
                self._index.apply(self._worker, change)
        if self._num_misplaced() > before:
            raise LogError("it tells of blocks whose parents it never told, or of another block size")

    def reset(self) -> None:
        self._index.reset_worker(self._worker)
        self._assumed.reset_worker(self._worker)

    def _num_misplaced(self) -> int:
        applied = self._index.applied(self._worker)
        return applied.num_orphans + applied.num_mismatched
