"""What an engine can begin a prompt with, where layers of several kinds keep blocks of their own.

    group      full attention: all blocks of the prefix · sliding window: those in the window before its
               end · Mamba: the state of its last block
    hit        the longest prefix for which each group has what it needs (vLLM's HybridKVCacheCoordinator)

All groups name a block by one engine hash, that of full attention (a group with larger blocks takes the hash
of their last part), and tell no more of it where blocks are masked: so they are joined by name, in whatever
order they come. Kinds are told with stores only, and not with an offload tier's: they are learnt. A group
of another kind (chunked attention, whose chunk is not told) bounds nothing.

Only workers that have announced a second group have this.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU, SHARED
from gateway.index.base import PLACE_COST, is_prefix_group

Place: TypeAlias = tuple[str, int]
"""(medium, group)."""

WINDOWED = frozenset({"sliding_window", "sliding_window_mla", "mamba"})


@dataclass(frozen=True, slots=True)
class Need:
    """Of a group, before the end of a hit: `num` blocks (None: all), each of `ratio` blocks of a prefix."""

    num: int | None
    ratio: int = 1

    def longest(self, held: dict[BlockHash, int], hashes: Sequence[BlockHash], most: int) -> int:
        """The longest hit of at most `most` blocks for which the group has what it needs."""
        if self.num is None:
            return next((i for i in range(most) if hashes[i] not in held), most)
        end = most - most % self.ratio
        run = 0
        for at in range(end, 0, -self.ratio):
            if hashes[at - 1] in held:
                end = end if run else at
                run += 1
                if run >= self.num:
                    return end
            else:
                run = 0
        return run * self.ratio  # shorter than the window, and all there from the first block on


def is_followed(spec_kind: str | None, size: int, block_size: int | None) -> bool:
    """Whether a group of this kind, in blocks of `size`, bounds a hit in a way that is known here."""
    size = size or block_size or 1
    return spec_kind in WINDOWED and not size % (block_size or size)


def need_of(spec_kind: str | None, size: int, window: int | None, block_size: int | None) -> Need | None:
    """What a group beside full attention needs; None where it bounds nothing that is known here."""
    if not is_followed(spec_kind, size, block_size):
        return None
    size = size or block_size or 1
    # The token that is computed next is in the window too. A window that is not told has two at least.
    num = -(-(window - 1) // size) if window and spec_kind != "mamba" else 1
    return Need(max(num, 1), size // (block_size or size))


@dataclass(slots=True, eq=False)
class Groups:
    """Of one worker. `names[place][name]` is the block that it names, None while that is not known;
    `held[group]` counts each block's names."""

    block_size: int | None
    num_full: int = 0
    needs: dict[int, Need | None] = field(default_factory=dict)
    names: dict[Place, dict[int, BlockHash | None]] = field(default_factory=dict)
    copies: dict[tuple[Place, int], int] = field(default_factory=dict)
    held: dict[int, dict[BlockHash, int]] = field(default_factory=dict)
    unknown: dict[int, list[int]] = field(default_factory=dict)  # name ─► groups that wait to know its block

    def is_prefix(self, group: int) -> bool:
        if group not in self.needs:
            return is_prefix_group(group, None) or group < 0  # in a snapshot (inventory.py)
        need = self.needs[group]
        return need is not None and need.num is None

    def begin(self, group: int) -> bool:
        """A group of full attention has blocks; True if it had none before."""
        if group in self.needs or group < 0:
            return False
        self.needs[group] = Need(None)
        self.num_full += 1
        return True

    def learn(self, group: int, spec_kind: str | None, size: int, window: int | None) -> bool:
        """What kind of group a store is of, in blocks of `size`; whether prefixes are made of it."""
        if spec_kind is None:
            return self.is_prefix(group)
        is_prefix = is_prefix_group(group, spec_kind)
        if group not in self.needs and not is_prefix:
            self.needs[group] = need_of(spec_kind, size, window, self.block_size)
        return is_prefix

    def store(self, place: Place, names: Iterable[int], find: Callable[[int], BlockHash | None]) -> None:
        """Blocks of any group that bounds a hit; `find` tells which block of full attention a name is of."""
        group = place[1]
        if not self._bounds(self.needs.get(group)):
            return
        here = self.names.setdefault(place, {})
        for name in names:
            if name in here:
                if SHARED not in place[0]:
                    self.copies[place, name] = self.copies.get((place, name), 1) + 1
                continue
            block = here[name] = find(name)
            if block is None:
                self.unknown.setdefault(name, []).append(group)
            else:
                self._count(group, block, 1)

    def found(self, names: Iterable[int], blocks: Iterable[BlockHash]) -> None:
        """Full attention has stored these: what other groups have under the same names is known now."""
        if not self.unknown:
            return
        for name, block in zip(names, blocks, strict=True):
            if self.unknown.pop(name, None) is None:
                continue
            for (_, group), here in self.names.items():
                if name in here and here[name] is None:
                    here[name] = block
                    self._count(group, block, 1)

    def remove(self, place: Place, names: Iterable[int]) -> int:
        """How many of them were there."""
        here, num = self.names.get(place, {}), 0
        for name in names:
            if name not in here:
                continue
            num += 1
            left = self.copies.pop((place, name), 1) - 1
            if left > 1:
                self.copies[place, name] = left
            elif not left:
                self._forget(place[1], name, here.pop(name))
        return num

    def clear(self) -> None:
        """The engine's own cache is empty."""
        for place in [place for place in self.names if place[0] == GPU]:
            for name, block in self.names.pop(place).items():
                self.copies.pop((place, name), None)
                self._forget(place[1], name, block)

    def num_kept(self, on_gpu: bool) -> int:
        """As in `Holder.num_kept`."""
        num = sum(len(here) for place, here in self.names.items() if (place[0] == GPU) is on_gpu)
        return num + len(self.copies) + PLACE_COST * len(self.needs)

    def bound(self, hashes: Sequence[BlockHash], depth: int) -> int:
        """How many of the leading `depth` blocks, which full attention has, a prompt can begin with."""
        before = -1
        while depth and depth != before:
            before = depth
            for group, need in self.needs.items():
                if need and self._bounds(need):
                    depth = need.longest(self.held.get(group, {}), hashes, depth)
        return depth

    def _bounds(self, need: Need | None) -> bool:
        """What a single group of full attention has is known without this."""
        return need is not None and (need.num is not None or self.num_full > 1)

    def _count(self, group: int, block: BlockHash, num: int) -> None:
        held = self.held.setdefault(group, {})
        count = held.pop(block, 0) + num
        if count:
            held[block] = count

    def _forget(self, group: int, name: int, block: BlockHash | None) -> None:
        if block is not None:
            self._count(group, block, -1)
        elif group in self.unknown.get(name, ()):
            self.unknown[name].remove(group)
            if not self.unknown[name]:
                del self.unknown[name]
