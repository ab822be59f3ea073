"""The index: for each worker, how many leading blocks of a prompt it holds.

Backends stand behind this protocol and one contract suite (`tests/index/contract.py`). Blocks are
named by our hash (`core/blocks.py`); engine hashes are known per worker only, for parents and
removals. An engine hash is a function of the block: no engine uses one for two blocks at a time.
All calls are synchronous and take effect at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import BlocksStored, EngineHash, KvEvent
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


class BlockSets(Protocol):
    """What events go into: an index, or what an agent keeps of its engine's ranks."""

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        """Make a worker known, with no blocks; `root` is the parent of its first blocks."""

    def drop_worker(self, worker: WorkerId) -> None:
        """Forget a worker and all its blocks; unknown workers are no error."""

    def reset_worker(self, worker: WorkerId) -> None:
        """Forget its blocks, keep the worker: its engine restarted or its stream lost something."""

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        """Apply one event of a known worker. Raises KeyError for a worker that was not added."""

    def applied(self, worker: WorkerId) -> Applied:
        """Counters of one worker; kept over resets."""

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        """Engine hashes kept of a worker, of its GPU or of all its other media, each in each place where it
        lies, and what else grows with its events: what `core/block_limits.py` bounds. Without looking at
        blocks."""


class Healed(Protocol):
    """What `blind_recovery.py` asks of an index, and tells it; each as below."""

    def apply(self, worker: WorkerId, event: KvEvent) -> None: ...

    def applied(self, worker: WorkerId) -> Applied: ...

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]: ...

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None: ...


class RecoveryTarget(Healed, Protocol):
    """One worker's blocks while its BLIND stream recovers, where its events do not go into the index."""

    settle: Callable[[], None]
    """Makes a batch of what was applied; called when no event is being applied."""

    @property
    def is_frozen(self) -> bool:
        """True while nothing may be applied."""


class Index(BlockSets, Protocol):
    def overlap(self, hashes: Sequence[BlockHash], most: int | None = None) -> Mapping[WorkerId, int]:
        """Leading blocks of `hashes` held in any medium, for each worker that holds at least the first.

        Of a worker with other groups beside full attention: as many as its engine can begin with (see
        `kv_groups.py`), of no more than `most`. Here and below `hashes` are a prompt's from its first block
        on.
        """

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        """Of the blocks that `overlap` counts, how many lie in each medium; in two media, in both."""

    def spilled(
        self, hashes: Sequence[BlockHash], held: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        """Of the leading blocks that workers hold (`held`, as `overlap` tells) those that are not on the GPU:
        how many lie in which media. Workers that have all there are left out; a fleet of these costs
        nothing."""

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        """Whether a worker holds all of `hashes`; False for one that is unknown."""

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        """Our hash of a block that the worker holds, in any medium, under an engine hash."""

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        """Its blocks, each once, in no order; not to be changed meanwhile."""

    def sweep(self) -> bool:
        """Do a bounded part, a few milliseconds, of what forgetting has left to do; False if none is left."""

    def num_blocks(self, worker: WorkerId) -> int:
        """Distinct blocks (by our hash) that the worker holds."""


class Losses(Protocol):
    """Is told by an index what workers no longer hold, where somebody wants to know."""

    def evict(self, block: BlockHash) -> None:
        """A worker removed it."""

    def forget(self, blocks: bytes) -> None:
        """Packed hashes, 8 bytes each: of what workers held that were dropped or reset, some time after."""

    def end(self, worker: WorkerId) -> None:
        """All that it held is gone: it was dropped or reset, or cleared its cache."""


class Holdings(Protocol):
    """Is told by an index which blocks its workers hold, each change once: what others may be told.

    A holding is a number from `begin` to `end`; a worker has one at a time, and another beside it, which is
    hidden, for blocks that it no longer holds and that an offload tier may still speak of.
    """

    def begin(self, holding: int, worker: WorkerId, *, is_hidden: bool) -> None:
        """It has no blocks yet."""

    def end(self, holding: int) -> None:
        """All its blocks are gone."""

    def hold(self, holding: int, blocks: Sequence[BlockHash], before: BlockHash | None) -> None:
        """A run that it did not hold, behind the block `before` (None: not known, or the root)."""

    def release(self, holding: int, block: BlockHash) -> None:
        """It no longer holds a block."""


FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of groups that keep all blocks of a prefix."""


def is_prefix_group(group_idx: int, spec_kind: str | None) -> bool:
    """Whether prefixes are made of this group's blocks: full attention, or the only group there is."""
    return spec_kind in FULL_ATTENTION or (spec_kind is None and group_idx == 0)


def is_partial(event: BlocksStored, block_size: int | None) -> bool:
    """Whether it is the beginning of a block that some newer engines cache too: no block of ours."""
    size = len(event.tokens)
    return len(event.engine_hashes) == 1 and 0 < size == event.block_size < (block_size or 0)


MAX_LEFT = 8192
"""Names of one worker's removed blocks by which an offload tier's store may still call them: more than what
is on its way there at any time. Some 200 bytes each, for workers that have such a tier."""

LINKS = -1
"""The group, which no engine has, of blocks that a snapshot (`inventory.py`) takes away again, and of those
whose engine hash is not known (`proofs.py`): nobody speaks of them by name later."""

PLACE_COST = 16
"""Blocks that a place counts for beside its own, where numbers are bounded: groups and media cost memory."""
