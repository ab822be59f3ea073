"""One worker's blocks: under which engine hashes, in which media, in how many copies.

    places   (medium, group) ─► Names         what each event's engine hash means there
    copies   (place, name) ─► count           only where a name was stored more than once
    names    (medium, block) ─► count         only where a block has more than one name in a medium
    spill    medium ─► edge ─► blocks         of media other than the GPU; a bit for each block
    off_gpu  edge ─► blocks                   held, but not on the GPU
    left     name ─► block                    removed, and may be called once more by an offload tier
    groups                                    what groups beside full attention have; None where there is none

Which blocks are held at all is with the edges (`edges.py`): a worker whose events speak of the GPU only
has nothing but one table of names.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU
from gateway.index.base import LINKS, PLACE_COST, Applied
from gateway.index.edges import POSITION, POSITION_BITS
from gateway.index.engine_hashes import Names
from gateway.index.kv_groups import Groups

Key = TypeVar("Key", bound=Hashable)

Place: TypeAlias = tuple[str, int]
"""(medium, group): where a copy lies; engine hashes are counted per place."""

Bitmaps: TypeAlias = dict[int, int]
"""Edge number ─► its blocks that are meant; never 0."""


@dataclass(slots=True, eq=False)
class Holder:
    bit: int
    root: BlockHash
    block_size: int | None
    num_blocks: int = 0
    applied: Applied = field(default_factory=Applied)
    places: dict[Place, Names] = field(default_factory=dict)
    copies: dict[tuple[Place, int], int] = field(default_factory=dict)
    names: dict[tuple[str, int], int] = field(default_factory=dict)
    spill: dict[str, Bitmaps] = field(default_factory=dict)
    off_gpu: Bitmaps = field(default_factory=dict)
    has_full: bool = False  # stores of full attention were placed
    has_tiers: bool = False
    hidden: int = 0  # the bit that keeps the blocks of `left` in the tree, and that no lookup sees
    left: OrderedDict[int, int] = field(default_factory=OrderedDict)
    groups: Groups | None = None

    def find(self, name: int) -> int | None:
        """The block of an engine hash, wherever it lies or lay."""
        for names in self.places.values():
            if (block := names.find(name)) is not None:
                return block
        return self.left.get(name) if self.left else None

    def at(self, place: Place) -> Names:
        if (names := self.places.get(place)) is None:
            names = self.places[place] = Names()
        return names

    def num_kept(self, on_gpu: bool) -> int:
        """See `BlockSets.num_kept`. What is proven by answers is not what it said."""
        num = 0
        for place, names in self.places.items():
            if (place[0] == GPU) is on_gpu and place[1] != LINKS:
                num += len(names) + PLACE_COST
        if self.copies or self.names:
            num += len(self.copies) + len(self.names)
        return num if self.groups is None else num + self.groups.num_kept(on_gpu)

    def in_medium(self, medium: str, block: int, held: int) -> int:
        """Which of the blocks that are held from number `block` on (bit 0 is that one) lie in `medium`."""
        number, position = block >> POSITION_BITS, block & POSITION
        if medium == GPU:
            return held & ~(self.off_gpu.get(number, 0) >> position) if self.off_gpu else held
        return held & (self.spill.get(medium, {}).get(number, 0) >> position)

    def enter(self, medium: str, block: int, span: int, held: int) -> None:
        """Blocks of `span`, numbered from `block` on, now lie in `medium`; `held` were held before."""
        number, position = block >> POSITION_BITS, block & POSITION
        if medium == GPU:
            if self.off_gpu:
                _clear(self.off_gpu, number, span << position)
            return
        bitmaps = self.spill.setdefault(medium, {})
        bitmaps[number] = bitmaps.get(number, 0) | span << position
        if new := (span & ~held) << position:
            self.off_gpu[number] = self.off_gpu.get(number, 0) | new

    def leave(self, medium: str, block: int) -> bool:
        """A block is no longer in `medium`; True if it was its last."""
        if not self.spill:
            return True
        number, bit = block >> POSITION_BITS, 1 << (block & POSITION)
        if medium != GPU:
            _clear(self.spill[medium], number, bit)
            if not self.off_gpu.get(number, 0) & bit:
                return False
        if any(bitmaps.get(number, 0) & bit for bitmaps in self.spill.values()):
            if medium == GPU:
                self.off_gpu[number] = self.off_gpu.get(number, 0) | bit
            return False
        if self.off_gpu:
            _clear(self.off_gpu, number, bit)
        return True

    def spilled(self, edges: Iterable[tuple[int, int]]) -> dict[tuple[str, ...], int]:
        """Of the first blocks of `edges` (number, how many), all of which it holds, those that are not on the
        GPU: how many in which media."""
        counts: dict[tuple[str, ...], int] = {}
        for number, num in edges:
            off = self.off_gpu.get(number, 0) & ((1 << num) - 1)
            while off:
                bit, alike, media = off & -off, off, []
                for medium, bitmaps in self.spill.items():
                    there = bitmaps.get(number, 0)
                    if there & bit:
                        media.append(medium)
                    alike &= there if there & bit else ~there
                key = tuple(sorted(media))
                counts[key] = counts.get(key, 0) + alike.bit_count()
                off &= ~alike
        return counts

    def clear_gpu(self) -> Iterator[Names]:
        """Give up the names of the GPU's places; what is left lies in other media."""
        for place in [place for place in self.places if place[0] == GPU]:
            yield self.places.pop(place)
        self.copies = {key: count for key, count in self.copies.items() if key[0][0] != GPU}
        self.names = {key: count for key, count in self.names.items() if key[0] != GPU}
        self.off_gpu = {}
        for bitmaps in self.spill.values():
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
    """Counts of one are not written down."""
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
