"""Interfaces of the index, which counts for each worker the leading blocks of a prompt that it holds.

Backends implement this protocol and pass one contract suite (`tests/index/contract.py`);
`gateway/app/index_backend.py` makes the configured one. Blocks are named by our hash (`core/blocks.py`);
engine hashes are known per worker only, for parents and removals. An engine hash is a function of the block:
no engine uses one for two blocks at a time. All calls are synchronous and take effect at once.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU, BlocksStored, EngineHash, KvEvent, UnknownEvent
from gateway.core.worker import WorkerId
from gateway.index.followed_tiers import MAX_MEDIA

OTHER_MEDIA = "OTHERS"
"""Name under which the blocks of media beyond MAX_MEDIA are counted."""


@dataclass(slots=True)
class Applied:
    """Counters of one worker's applied KV events, since the worker was added.

    `num_orphans` counts blocks with an unknown parent (they cannot be placed), `num_unknown_removals`
    removals of unknown blocks, `num_mismatched` stores with tokens that do not fit their block count, or with
    a block size other than the worker's, `num_unknown_events` those of an unknown kind, or of a medium or
    group beyond those that are followed (`followed_tiers.py`). Orphans and mismatches are the GPU's;
    `unplaced` counts the blocks that could not be placed in each other medium, and says nothing about the
    GPU.
    """

    num_stored: int = 0
    num_removed: int = 0
    num_orphans: int = 0
    num_unknown_removals: int = 0
    num_mismatched: int = 0
    num_unknown_events: int = 0
    unplaced: dict[str, int] = field(default_factory=dict)

    def orphaned(self, medium: str, num: int) -> None:
        """Count `num` blocks with an unknown parent, or without tokens under an unknown name."""
        if medium == GPU:
            self.num_orphans += num
        else:
            self.miss(medium, num)

    def mismatched(self, event: BlocksStored, block_size: int | None) -> None:
        """Count a store with tokens that do not fit; a partial block of the GPU is expected."""
        if event.medium == GPU:
            self.num_mismatched += not is_partial(event, block_size)
        else:
            self.miss(event.medium, len(event.engine_hashes))

    def unknown(self, event: UnknownEvent) -> None:
        if event.medium == GPU:
            self.num_unknown_events += 1
        else:
            self.miss(event.medium, 1)

    def miss(self, medium: str, num: int) -> None:
        """Count `num` blocks of a medium other than the GPU that are not placed."""
        if medium not in self.unplaced and len(self.unplaced) >= MAX_MEDIA:
            medium = OTHER_MEDIA
        self.unplaced[medium] = self.unplaced.get(medium, 0) + num


class BlockSets(Protocol):
    """Consumer of KV events: an index, or the inventory that an agent keeps of its engine's ranks."""

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        """Make a worker known, with no blocks; `root` is the parent of its first blocks."""

    def drop_worker(self, worker: WorkerId) -> None:
        """Forget a worker and all its blocks; unknown workers are no error."""

    def reset_worker(self, worker: WorkerId) -> None:
        """Forget all blocks of a worker but keep the worker: its engine restarted or its stream has a gap."""

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        """Apply one event of a known worker. Raises KeyError for a worker that was not added."""

    def applied(self, worker: WorkerId) -> Applied:
        """Counters of one worker; kept over resets."""

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        """Count the engine hashes kept of a worker (once per tier) and everything else that grows with its
        events.

        `on_gpu` selects the GPU or all other media. Costs no look at the blocks; `core/block_limits.py`
        bounds it.
        """


class RecoveryIndex(Protocol):
    """Index operations that `blind_recovery.py` needs; each as in `Index`."""

    def apply(self, worker: WorkerId, event: KvEvent) -> None: ...

    def applied(self, worker: WorkerId) -> Applied: ...

    def overlap(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]: ...

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None: ...


class RecoveryTarget(RecoveryIndex, Protocol):
    """Blocks of one worker while its BLIND stream recovers, where its events do not go into the index."""

    settle: Callable[[], None]
    """Flush what was applied as one batch; called when no event is being applied."""

    @property
    def is_frozen(self) -> bool:
        """True while nothing may be applied."""


class Index(BlockSets, Protocol):
    def overlap(
        self, hashes: Sequence[BlockHash], most: int | None = None, *, drops_last: bool = False
    ) -> Mapping[WorkerId, int]:
        """Count the leading blocks of `hashes` held in any medium, for each worker that holds at least the
        first.

        For a worker with groups beside full attention: as many as its engine can begin with (see
        `kv_groups.py`), of no more than `most`; with `drops_last` one more, which its engine's speculation
        drops. Here and below `hashes` are a prompt's from its first block on.
        """

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        """Count per worker how many of the blocks of `overlap` lie in each medium; a block in two media
        counts in both."""

    def offloaded(
        self, hashes: Sequence[BlockHash], overlap: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        """Count per worker the leading blocks that are not on the GPU, by the set of media where they lie.

        `overlap` limits each worker's blocks. Workers with all blocks on the GPU are left out; a fleet of
        these costs nothing.
        """

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        """Return True if the worker is known and holds all of `hashes`."""

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        """Return our hash of a block that the worker holds, in any medium, under an engine hash."""

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        """Iterate over a worker's distinct blocks, in no order; the index must not change meanwhile."""

    def sweep(self) -> bool:
        """Do a bounded part (a few milliseconds) of pending clean-up, and of the copying of a large shared
        tier's blocks to a worker that has come to it; False if none is left."""

    def num_blocks(self, worker: WorkerId) -> int:
        """Distinct blocks (by our hash) that the worker holds."""

    def exclusive(self, first: int, num: int) -> tuple[Mapping[WorkerId, int], bool]:
        """Count for each worker the blocks that no other one holds, in `num` runs of blocks from the run
        number `first` on; False with the last of them. An index that does not see all workers counts none."""


Fetch = Callable[[BlockHash, Sequence[BlockHash]], Awaitable[None]]
"""Lets an index that is not in this process answer for a prompt: called with its model's root and its hashes,
before they are looked up. Raises nothing, and has its own deadline."""


class Losses(Protocol):
    """Observer of blocks that workers lose."""

    def evict(self, block: BlockHash) -> None:
        """A worker removed the block."""

    def forget(self, blocks: bytes) -> None:
        """Blocks of a dropped or reset worker were swept, some time later; packed hashes of 8 bytes each."""

    def end(self, worker: WorkerId) -> None:
        """A worker lost all its blocks: it was dropped or reset, or cleared its cache."""


class Holdings(Protocol):
    """Observer of the blocks that an index's workers hold, notified once of each change, for publication.

    A holding is a number from `begin` to `end`. A worker has one at a time, and a hidden one beside it for
    blocks that it no longer holds and that an offload tier may still refer to.
    """

    def begin(self, holding: int, worker: WorkerId, *, is_hidden: bool) -> None:
        """Start a holding without blocks."""

    def end(self, holding: int) -> None:
        """End a holding; all its blocks are gone."""

    def hold(self, holding: int, blocks: Sequence[BlockHash], before: BlockHash | None) -> None:
        """Add a run that the holding did not have, behind the block `before` (None: unknown, or the root)."""

    def release(self, holding: int, block: BlockHash) -> None:
        """Remove one block from the holding."""


FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups that keep all blocks of a prefix."""


def is_prefix_group(group_idx: int, spec_kind: str | None) -> bool:
    """Return True if prefixes consist of this group's blocks: full attention, or the only group there is."""
    return spec_kind in FULL_ATTENTION or (spec_kind is None and group_idx == 0)


def is_partial(event: BlocksStored, block_size: int | None) -> bool:
    """Return True for the partial block that some newer engines cache too; it is no block of ours."""
    size = len(event.tokens)
    return len(event.engine_hashes) == 1 and 0 < size == event.block_size < (block_size or 0)


MAX_REMOVED = 8192
"""Engine hashes of removed blocks kept per worker, by which an offload tier's store may still refer to them.
More than are on their way there at any time. Some 200 bytes each, for workers with such a tier."""

LINKS = -1
"""Pseudo group (no engine has it) of blocks without a known engine hash (`proofs.py`), and of those that a
snapshot (`inventory.py`) removes again: no event refers to them by name later."""

LEFT = -2
"""Pseudo group of blocks of a snapshot that were removed. A store of none in it: the worker has had offload
tiers, so that what is removed from now on is remembered."""

TIER_COST = 16
"""Blocks that a tier counts for, beside its own, where numbers are bounded: groups and media cost memory."""
