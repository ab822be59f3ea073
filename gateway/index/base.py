"""The index: for each worker, how many leading blocks of a prompt it holds.

Backends stand behind this protocol and one contract suite (`tests/index/contract.py`). Blocks are
named by our hash (`core/blocks.py`); engine hashes are known per worker only, for parents and
removals. All calls are synchronous and take effect at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.blocks import BlockHash
from gateway.core.events import KvEvent
from gateway.core.worker import WorkerId


@dataclass(slots=True)
class Applied:
    """What applying events came to, per worker and since it was added.

    `num_orphans` counts blocks whose parent is unknown (they cannot be placed), `num_unknown_removals`
    removals of blocks that we did not know, `num_mismatched` stores whose tokens do not fit their
    block count or whose block size is not the worker's.
    """

    num_stored: int = 0
    num_removed: int = 0
    num_orphans: int = 0
    num_unknown_removals: int = 0
    num_mismatched: int = 0
    num_unknown_events: int = 0


class Index(Protocol):
    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        """Make a worker known, with no blocks; `root` is the parent of its first blocks."""

    def drop_worker(self, worker: WorkerId) -> None:
        """Forget a worker and all its blocks; unknown workers are no error."""

    def reset_worker(self, worker: WorkerId) -> None:
        """Forget its blocks, keep the worker: its engine restarted or its stream lost something."""

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        """Apply one event of a known worker. Raises KeyError for a worker that was not added."""

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        """Leading blocks of `hashes` held, for each worker that holds at least the first."""

    def num_blocks(self, worker: WorkerId) -> int:
        """Distinct blocks (by our hash) that the worker holds."""

    def applied(self, worker: WorkerId) -> Applied:
        """Counters of one worker; kept over resets."""
