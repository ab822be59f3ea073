"""Holdings that record what an index reports to them."""

from collections.abc import Sequence

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId


class RecordedHoldings:
    """`Holdings` that records all calls of an index."""

    def __init__(self) -> None:
        self.changes: list[tuple[object, ...]] = []

    def begin(self, holding: int, worker: WorkerId, *, is_hidden: bool) -> None:
        self.changes.append(("begin", holding, worker, is_hidden))

    def end(self, holding: int) -> None:
        self.changes.append(("end", holding))

    def hold(self, holding: int, blocks: Sequence[BlockHash], before: BlockHash | None) -> None:
        self.changes.append(("hold", holding, list(blocks), before))

    def release(self, holding: int, block: BlockHash) -> None:
        self.changes.append(("release", holding, block))

    def of(self, verb: str) -> list[tuple[object, ...]]:
        found = [change[1:] for change in self.changes if change[0] == verb]
        self.changes.clear()
        return found
