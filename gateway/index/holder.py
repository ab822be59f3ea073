"""Engine hashes, media and copies of one worker's blocks.

    tiers    (medium, group) ─► EngineHashTable  what each event's engine hash means there
    copies   (tier, key) ─► count            only where an engine hash was stored more than once
    aliases  (medium, block) ─► count        only where a block has more than one engine hash in a medium
    offload  medium ─► edge ─► blocks        of media other than the GPU; a bit for each block
    off_gpu  edge ─► blocks                  held, but not on the GPU
    removed  key ─► block                    removed, and an offload tier may refer to it once more
    groups                                   blocks of groups beside full attention; None where there is none

The edges (`edges.py`) know which blocks are held at all: a worker with GPU events only has nothing but one
table of engine hashes here.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU
from gateway.index.base import LINKS, TIER_COST, Applied
from gateway.index.edges import POSITION, POSITION_BITS
from gateway.index.engine_hashes import EngineHashTable
from gateway.index.followed_tiers import FollowedTiers
from gateway.index.kv_groups import Groups

Key = TypeVar("Key", bound=Hashable)

Tier: TypeAlias = tuple[str, int]
"""(medium, group): where a copy lies; engine hashes are counted per tier."""

Bitmaps: TypeAlias = dict[int, int]
"""Edge number ─► bitmap of its blocks; never 0."""


@dataclass(slots=True, eq=False)
class Holder:
    bit: int
    root: BlockHash
    block_size: int | None
    num_blocks: int = 0
    applied: Applied = field(default_factory=Applied)
    tiers: dict[Tier, EngineHashTable] = field(default_factory=dict)
    copies: dict[tuple[Tier, int], int] = field(default_factory=dict)
    aliases: dict[tuple[str, int], int] = field(default_factory=dict)
    offload: dict[str, Bitmaps] = field(default_factory=dict)
    off_gpu: Bitmaps = field(default_factory=dict)
    followed: FollowedTiers = field(default_factory=FollowedTiers)
    has_full: bool = False  # stores of full attention were placed
    has_tiers: bool = False
    hidden: int = 0  # the bit, unseen by lookups, that keeps the blocks of `removed` in the tree
    removed: OrderedDict[int, int] = field(default_factory=OrderedDict)
    groups: Groups | None = None

    def find(self, name: int) -> int | None:
        """Return the block number of an engine hash in any tier, or among the removed ones."""
        for names in self.tiers.values():
            if (block := names.find(name)) is not None:
                return block
        return self.removed.get(name) if self.removed else None

    def at(self, tier: Tier) -> EngineHashTable:
        if (names := self.tiers.get(tier)) is None:
            names = self.tiers[tier] = EngineHashTable()
        return names

    def num_kept(self, on_gpu: bool) -> int:
        """Count what grows with a worker's events (see `BlockSets.num_kept`); blocks proven by answers do not
        count."""
        num = 0
        for tier, names in self.tiers.items():
            if (tier[0] == GPU) is on_gpu and tier[1] != LINKS:
                num += len(names) + TIER_COST
        if self.copies or self.aliases:
            num += len(self.copies) + len(self.aliases)
        return num if self.groups is None else num + self.groups.num_kept(on_gpu)

    def in_medium(self, medium: str, block: int, held: int) -> int:
        """Return which of the held blocks, numbered from `block` on (bit 0), lie in `medium`."""
        number, position = block >> POSITION_BITS, block & POSITION
        if medium == GPU:
            return held & ~(self.off_gpu.get(number, 0) >> position) if self.off_gpu else held
        return held & (self.offload.get(medium, {}).get(number, 0) >> position)

    def enter(self, medium: str, block: int, span: int, held: int) -> None:
        """Mark the blocks of the bitmap `span`, numbered from `block` on, as being in `medium`; `held` were
        held before."""
        number, position = block >> POSITION_BITS, block & POSITION
        if medium == GPU:
            if self.off_gpu:
                _clear(self.off_gpu, number, span << position)
            return
        bitmaps = self.offload.setdefault(medium, {})
        bitmaps[number] = bitmaps.get(number, 0) | span << position
        if new := (span & ~held) << position:
            self.off_gpu[number] = self.off_gpu.get(number, 0) | new

    def leave(self, medium: str, block: int) -> bool:
        """Remove a block from `medium`; True if that was its last medium."""
        if not self.offload:
            return True
        number, bit = block >> POSITION_BITS, 1 << (block & POSITION)
        if medium != GPU:
            _clear(self.offload[medium], number, bit)
            if not self.off_gpu.get(number, 0) & bit:
                return False
        if any(bitmaps.get(number, 0) & bit for bitmaps in self.offload.values()):
            if medium == GPU:
                self.off_gpu[number] = self.off_gpu.get(number, 0) | bit
            return False
        if self.off_gpu:
            _clear(self.off_gpu, number, bit)
        return True

    def offloaded(self, edges: Iterable[tuple[int, int]]) -> dict[tuple[str, ...], int]:
        """Count blocks that are not on the GPU, by the set of media where they lie. `edges` are pairs (edge
        number, number of leading blocks), all of them held."""
        counts: dict[tuple[str, ...], int] = {}
        for number, num in edges:
            off = self.off_gpu.get(number, 0) & ((1 << num) - 1)
            while off:
                bit, alike, media = off & -off, off, []
                for medium, bitmaps in self.offload.items():
                    there = bitmaps.get(number, 0)
                    if there & bit:
                        media.append(medium)
                    alike &= there if there & bit else ~there
                key = tuple(sorted(media))
                counts[key] = counts.get(key, 0) + alike.bit_count()
                off &= ~alike
        return counts

    def num_on_gpu(self) -> int:
        """Count the engine hashes on the GPU."""
        return sum(len(names) for tier, names in self.tiers.items() if tier[0] == GPU)

    def drop_gpu(self) -> Iterator[int]:
        """Drop the GPU's blocks one by one, yielding those that lie in no other medium."""
        blocks: set[int] = set()
        for tier in [tier for tier in self.tiers if tier[0] == GPU]:
            for name, block in self.tiers.pop(tier).items():
                blocks.add(block)
                self.copies.pop((tier, name), None)
                self.aliases.pop((GPU, block), None)
        for block in blocks:
            if self.leave(GPU, block):
                self.num_blocks -= 1
                yield block

    def clear_gpu(self) -> Iterator[EngineHashTable]:
        """Drop all blocks of the GPU at once, yielding their tables; only blocks in other media stay."""
        for tier in [tier for tier in self.tiers if tier[0] == GPU]:
            yield self.tiers.pop(tier)
        self.copies = {key: count for key, count in self.copies.items() if key[0][0] != GPU}
        self.aliases = {key: count for key, count in self.aliases.items() if key[0] != GPU}
        self.off_gpu = {}
        for bitmaps in self.offload.values():
            for number, blocks in bitmaps.items():
                self.off_gpu[number] = self.off_gpu.get(number, 0) | blocks
        self.num_blocks = sum(map(int.bit_count, self.off_gpu.values()))


def _clear(bitmaps: Bitmaps, number: int, blocks: int) -> None:
    left = bitmaps.get(number, 0) & ~blocks
    if left:
        bitmaps[number] = left
    else:
        bitmaps.pop(number, None)


def one_more(counts: dict[Key, int], key: Key) -> None:
    """Count one more; counts of one are not stored."""
    counts[key] = counts.get(key, 1) + 1


def one_less(counts: dict[Key, int], key: Key) -> bool:
    """Count one less; False if it was the last."""
    left = counts.get(key, 1) - 1
    if left == 0:
        return False
    if left == 1:
        del counts[key]
    else:
        counts[key] = left
    return True
