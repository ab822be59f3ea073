"""Prefix lengths an engine can begin with, where layers of several kinds keep blocks of their own.

    group        full attention: all blocks of the prefix · sliding window: those in the window before its
                 end · Mamba: the state of its last block
    hit          the longest prefix for which each group has what it needs (vLLM's HybridKVCacheCoordinator)
    speculation  EAGLE and its like drop the last block of what attention layers hold, before a state is
                 looked for: a state at that block's end is not reached, and one before it costs nothing more

All groups name a block by one engine hash, that of full attention (a group with larger blocks takes the hash
of their last part), and report nothing else about masked blocks: so they are joined by engine hash, in any
order. Kinds come with stores only, and not with an offload tier's: they are learnt. A group of another kind
(chunked attention, with a chunk size that events omit) bounds nothing.

Only workers that have announced a second group have this.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import GPU, SHARED
from gateway.index.base import TIER_COST, is_prefix_group

Tier: TypeAlias = tuple[str, int]
"""(medium, group)."""

MAX_LOOKS: Final = 16_384
"""Blocks looked up for one worker and prompt, beside four for each block of the prompt."""
WINDOWED = frozenset({"sliding_window", "sliding_window_mla", "mamba"})


@dataclass(frozen=True, slots=True)
class Need:
    """Blocks that a group needs before the end of a hit: `num` of them (None: all), each of `ratio` prefix
    blocks."""

    num: int | None
    ratio: int = 1
    is_state: bool = False


class Search:
    """Search for the hits of one group in one prompt, each at most as long as the one before: no block is
    looked up twice. `drops_last`: speculation then drops the last block of a hit."""

    def __init__(
        self, need: Need, held: dict[BlockHash, int], hashes: Sequence[BlockHash], *, drops_last: bool = False
    ) -> None:
        self.num_looks = 0
        self._num, self._ratio = need.num or 0, need.ratio
        self._is_prefix = need.num is None
        self._keeps_state = drops_last and need.is_state
        if drops_last and not need.is_state:
            self._num += 1
        self._held, self._hashes = held, hashes
        self._low = self._high = 0  # blocks between these positions are held

    def longest(self, most: int) -> int:
        """Return the longest hit of at most `most` blocks for which the group has the blocks it needs."""
        self.num_looks += 1
        if self._is_prefix:
            return self._prefix(most)
        if self._keeps_state:
            kept = self._windowed(max(most - 1, 0))
            return kept + 1 if kept else 0
        return self._windowed(most)

    def _prefix(self, most: int) -> int:
        if most > self._high:
            self.num_looks += most
            held, hashes = self._held, self._hashes
            self._high = next((i for i in range(most) if hashes[i] not in held), most)
        return min(most, self._high)

    def _windowed(self, most: int) -> int:
        held, hashes, ratio = self._held, self._hashes, self._ratio
        end = at = most - most % ratio
        if self._low < end <= self._high:
            at = self._low
        begin, run = at, (end - at) // ratio
        while at > 0 and run < self._num:
            at -= ratio
            if hashes[at + ratio - 1] in held:
                run += 1
            else:
                end, run = at, 0
        self.num_looks += (begin - at) // ratio
        self._low, self._high = at, end
        return end  # or shorter than the window, and complete from the first block on


def is_followed(spec_kind: str | None, size: int, block_size: int | None) -> bool:
    """Return True if a group of this kind, in blocks of `size`, bounds a hit in a known way."""
    size = size or block_size or 1
    return spec_kind in WINDOWED and not size % (block_size or size)


def need_of(spec_kind: str | None, size: int, window: int | None, block_size: int | None) -> Need | None:
    """Return the need of a group beside full attention; None where it bounds nothing that is known."""
    if not is_followed(spec_kind, size, block_size):
        return None
    size = size or block_size or 1
    # The window includes the token that is computed next. An unreported window counts as two tokens.
    num = -(-(window - 1) // size) if window and spec_kind != "mamba" else 1
    return Need(max(num, 1), size // (block_size or size), spec_kind == "mamba")


@dataclass(slots=True, eq=False)
class Groups:
    """KV cache groups of one worker. `names[tier][key]` is the block of an engine hash, None while unknown;
    `held[group]` counts each block's engine hashes."""

    block_size: int | None
    num_full: int = 0
    needs: dict[int, Need | None] = field(default_factory=dict)
    names: dict[Tier, dict[int, BlockHash | None]] = field(default_factory=dict)
    copies: dict[tuple[Tier, int], int] = field(default_factory=dict)
    held: dict[int, dict[BlockHash, int]] = field(default_factory=dict)
    unknown: dict[int, list[int]] = field(default_factory=dict)  # key ─► groups that wait for its block

    def is_prefix(self, group: int) -> bool:
        if group not in self.needs:
            return is_prefix_group(group, None) or group < 0  # in a snapshot (inventory.py)
        need = self.needs[group]
        return need is not None and need.num is None

    def begin(self, group: int) -> bool:
        """Register a group of full attention that has blocks; True if it was new."""
        if group in self.needs or group < 0:
            return False
        self.needs[group] = Need(None)
        self.num_full += 1
        return True

    def learn(self, group: int, spec_kind: str | None, size: int, window: int | None) -> bool:
        """Learn a group's kind from a store, in blocks of `size`; returns True if prefixes consist of its
        blocks."""
        if spec_kind is None:
            return self.is_prefix(group)
        is_prefix = is_prefix_group(group, spec_kind)
        if group not in self.needs and not is_prefix:
            self.needs[group] = need_of(spec_kind, size, window, self.block_size)
        return is_prefix

    def store(self, tier: Tier, names: Iterable[int], find: Callable[[int], BlockHash | None]) -> None:
        """Store blocks of a group that bounds a hit; `find` returns the full-attention block of a key."""
        group = tier[1]
        if not self._bounds(self.needs.get(group)):
            return
        here = self.names.setdefault(tier, {})
        for name in names:
            if name in here:
                if SHARED not in tier[0]:
                    self.copies[tier, name] = self.copies.get((tier, name), 1) + 1
                continue
            block = here[name] = find(name)
            if block is None:
                self.unknown.setdefault(name, []).append(group)
            else:
                self._count(group, block, 1)

    def found(self, names: Iterable[int], blocks: Iterable[BlockHash]) -> None:
        """Full attention has stored these blocks: resolve the same engine hashes in other groups."""
        if not self.unknown:
            return
        for name, block in zip(names, blocks, strict=True):
            if self.unknown.pop(name, None) is None:
                continue
            for (_, group), here in self.names.items():
                if name in here and here[name] is None:
                    here[name] = block
                    self._count(group, block, 1)

    def remove(self, tier: Tier, names: Iterable[int]) -> int:
        """Remove blocks of a tier; returns how many of them were there."""
        here, num = self.names.get(tier, {}), 0
        for name in names:
            if name not in here:
                continue
            num += 1
            left = self.copies.pop((tier, name), 1) - 1
            if left > 1:
                self.copies[tier, name] = left
            elif not left:
                self._forget(tier[1], name, here.pop(name))
        return num

    def clear(self) -> None:
        """Drop all GPU blocks: the engine cleared its own cache."""
        for tier in [tier for tier in self.names if tier[0] == GPU]:
            for name, block in self.names.pop(tier).items():
                self.copies.pop((tier, name), None)
                self._forget(tier[1], name, block)

    def num_kept(self, on_gpu: bool) -> int:
        """Count what grows with events, as `Holder.num_kept` does."""
        num = sum(len(here) for tier, here in self.names.items() if (tier[0] == GPU) is on_gpu)
        return num + len(self.copies) + TIER_COST * len(self.needs)

    def bound(self, hashes: Sequence[BlockHash], depth: int, *, drops_last: bool = False) -> int:
        """Return how many of the leading `depth` blocks (held by full attention) a prompt can begin with;
        with `drops_last` one more, which speculation drops. 0 where that takes more looks than
        MAX_LOOKS and four for each block, for which clients would wait: no engine has that many groups."""
        searches = [
            Search(need, self.held.get(group, {}), hashes, drops_last=drops_last)
            for group, need in self.needs.items()
            if need is not None and self._bounds(need)
        ]
        before, left = -1, MAX_LOOKS + 4 * depth
        while depth and depth != before:
            before = depth
            for search in searches:
                left += search.num_looks
                depth = search.longest(depth)
                left -= search.num_looks
                if left < 0:
                    return 0
        return depth

    def _bounds(self, need: Need | None) -> bool:
        """Return True if this table must check the group; the index itself knows a single full-attention
        group."""
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
