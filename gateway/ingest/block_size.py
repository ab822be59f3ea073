"""Block size of one worker, as its events show it.

    evidence                                            block size
    --------------------------------------------------  ------------------------------------------------------
    a run of several blocks, or one behind another      their size, for as long as the engine runs
    a single block of the reported size                 the same
    a single larger one, or where no size is known      its size, until others show another
    a single smaller one                                none: it may be a partial block; three of one size
                                                        are taken for whole ones

Only blocks of the GPU count, of groups that prefixes consist of: other tiers may have chunks of their own.
Nothing is looked at once the size is certain; another size in later events is a mismatch.
"""

from collections.abc import Callable, Iterable

from gateway.core.kv_events import GPU, BlocksStored, EngineHash, KvEvent
from gateway.index.base import is_prefix_group

NUM_ALIKE = 3
"""Single blocks of one smaller size that are no partial blocks: these have all lengths."""
MAX_CHANGES = 4
"""Changes of one worker's block size that are followed; each costs its blocks."""
MAX_SINGLES = 64
"""Single blocks remembered at most."""


class SizeEvidence:
    """Evidence of a worker's block size. `size` is the expected one, in tokens, or None. `is_certain`: it is
    not looked for. `num_smaller` counts the blocks that were taken for partial ones."""

    def __init__(self, size: int | None, on_size: Callable[[int], None] | None = None) -> None:
        """Create evidence. `on_size` is called with another size that events show, before one of them is
        applied; None: the size is certain."""
        self.size = size
        self.is_certain = on_size is None
        self.num_smaller = 0
        self._on_size = on_size
        self._num_changes = 0
        self._is_reported = size is not None
        self._singles: dict[EngineHash, int] = {}

    def __repr__(self) -> str:
        return f"SizeEvidence({self.size}, {'certain' if self.is_certain else 'expected'})"

    def look(self, events: Iterable[KvEvent]) -> bool:
        """Return True if a batch shows another block size, which is the expected one from then on."""
        before = self.size
        for event in events:
            if self.is_certain:
                break
            if isinstance(event, BlocksStored) and is_whole(event):
                self._see(event)
        if self.size is None or self.size == before:
            return False
        if self._on_size is not None:
            self._on_size(self.size)
        return True

    def forget(self) -> None:
        """Look for evidence again: another engine process may publish."""
        self.is_certain = self._on_size is None or self._num_changes > MAX_CHANGES
        self.num_smaller = 0
        self._singles.clear()

    def _see(self, event: BlocksStored) -> None:
        size = event.block_size
        parent = None if event.parent is None else self._singles.get(event.parent)
        is_proof = len(event.engine_hashes) > 1 or parent == size
        if len(self._singles) < MAX_SINGLES:
            self._singles[event.engine_hashes[0]] = size
        num_alike = list(self._singles.values()).count(size)
        if size == self.size:
            self.is_certain = is_proof or self._is_reported
        elif is_proof or self.size is None or size > self.size or num_alike >= NUM_ALIKE:
            self.size, self.is_certain, self._is_reported = size, is_proof, False
            self._num_changes += 1
        else:
            self.num_smaller += 1


def is_whole(event: BlocksStored) -> bool:
    """Return True for blocks of a prefix on the GPU, with all their tokens."""
    num, size = len(event.engine_hashes), event.block_size
    if event.medium != GPU or not num or size < 1 or len(event.tokens) != num * size:
        return False
    return is_prefix_group(event.group_idx, event.spec_kind)
