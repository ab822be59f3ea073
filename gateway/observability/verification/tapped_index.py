"""An index that reports each event to a listener, after the event was applied."""

from collections.abc import Callable

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, BlockSets


class TappedIndex(BlockSets):
    def __init__(self, blocks: BlockSets, heard: Callable[[WorkerId, KvEvent], None]) -> None:
        self._blocks = blocks
        self._heard = heard

    def __repr__(self) -> str:
        return f"TappedIndex({self._blocks!r})"

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self._blocks.add_worker(worker, root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        self._blocks.drop_worker(worker)

    def reset_worker(self, worker: WorkerId) -> None:
        self._blocks.reset_worker(worker)

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        self._blocks.apply(worker, event)
        self._heard(worker, event)

    def applied(self, worker: WorkerId) -> Applied:
        return self._blocks.applied(worker)

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        return self._blocks.num_kept(worker, on_gpu=on_gpu)
