"""Packed edges of the prefix tree: runs of blocks, and the workers that hold them.

    heads   first hash ─► Edge                one dict for all edges; no edge knows another
    Edge    hashes  h0 h1 h2 h3 …             8 bytes each, at most MAX_BLOCKS
            full    0b0110                    the workers that hold all of it, a bit each
            parts   {0b0011: 0b1000}          which of its blocks ─► the workers that hold just these

A hash identifies its block and all before it, so after a block comes the next of its edge or an edge that
begins with the prompt's next hash. Equality at one position is equality before it: an edge is compared by its
last hash, and where it differs by bisection. An edge is never cut in two: what branches off its middle is an
edge of its own. A block's *number* (edge number · 256 + position) stays while it is held.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.blocks import BlockHash
from gateway.index.base import Holdings

POSITION_BITS: Final = 8
MAX_BLOCKS: Final = 1 << POSITION_BITS
POSITION: Final = MAX_BLOCKS - 1
MAX_EDGES: Final = 1 << (32 - POSITION_BITS)
"""Block numbers have 32 bits: 4 bytes beside each engine hash."""


@mypyc_attr(acyclic=True)
class Edge:
    """Run of up to 256 consecutive blocks. No reference cycle goes through it, so the garbage collector skips
    it.

    `branch` counts the blocks before the latest branch, `branch_last` is the hash of the last of them.
    """

    __slots__ = ("number", "hashes", "last", "num", "full", "parts", "before", "branch", "branch_last")

    def __init__(self, number: int, hashes: bytes, last: int, num: int, before: int) -> None:
        self.number = number
        self.hashes = hashes
        self.last = last
        self.num = num
        self.full = 0
        self.parts: dict[int, int] | None = None
        self.before = before
        self.branch = self.branch_last = 0

    def held(self, bit: int) -> int:
        """Return the bitmap of the blocks that a worker holds, the first in the lowest bit."""
        if self.full & bit:
            return (1 << self.num) - 1
        for blocks, workers in (self.parts or {}).items():
            if workers & bit:
                return blocks
        return 0

    def hold(self, bit: int, blocks: int, before: int) -> None:
        """Set the blocks that a worker holds from the bitmap `before` to `blocks`."""
        whole = (1 << self.num) - 1
        if before == whole:
            self.full &= ~bit
        elif before:
            self._drop_part(before, bit)
        if blocks == whole:
            self.full |= bit
        elif blocks:
            self.parts = self.parts or {}
            self.parts[blocks] = self.parts.get(blocks, 0) | bit

    def _drop_part(self, blocks: int, workers: int) -> None:
        assert self.parts is not None
        left = self.parts[blocks] & ~workers
        if left:
            self.parts[blocks] = left
        elif len(self.parts) == 1:
            self.parts = None
        else:
            del self.parts[blocks]

    def extend(self, packed: bytes, last: int, bit: int) -> None:
        """Append blocks: `bit` holds them if it holds the rest; for all others they are missing."""
        others = self.full & ~bit
        if others:
            self.parts = self.parts or {}
            self.parts[(1 << self.num) - 1] = others
            self.full &= bit
        self.hashes += packed
        self.num += len(packed) // 8
        self.last = last

    def branch_at(self, position: int) -> None:
        """Remember the position of the latest branch, where most prompts will leave the edge."""
        self.branch = position
        self.branch_last = int.from_bytes(self.hashes[position * 8 - 8 : position * 8], "little")

    def trim(self) -> bool:
        """Drop blocks at the end that no worker holds; True if none is left."""
        if self.full:
            return False
        num = max(map(int.bit_length, self.parts)) if self.parts else 0
        if 0 < num < self.num:
            self.num, self.hashes = num, self.hashes[: num * 8]
            self.last = int.from_bytes(self.hashes[-8:], "little")
            self.branch = self.branch if self.branch <= num else 0
            whole = (1 << num) - 1
            if self.parts and (workers := self.parts.get(whole, 0)):
                self._drop_part(whole, workers)
                self.full = workers
        return num == 0

    def forget(self, workers: int) -> bool:
        """Remove these workers as holders; True if no block is left."""
        self.full &= ~workers
        if self.parts:
            left = {blocks: mask & ~workers for blocks, mask in self.parts.items() if mask & ~workers}
            self.parts = left or None
        return self.trim()

    def match(self, hashes: Sequence[BlockHash], first: int, position: int = 0) -> int:
        """Count the blocks from `position` on that equal those of `hashes` from `first` on."""
        own = memoryview(self.hashes).cast("Q")
        low, high = 0, min(len(hashes) - first, self.num - position)
        offset, middle = position - first - 1, high
        while low < high:  # blocks up to `low` are equal, those over `high` are not
            if own[first + middle + offset] == hashes[first + middle - 1]:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    def holding(self, num: int) -> int:
        """Return the workers that hold at least the first `num` blocks."""
        workers, leading = self.full, (1 << num) - 1
        if self.parts:
            for blocks, mask in self.parts.items():
                if blocks & leading == leading:
                    workers |= mask
        return workers

    def exclusive(self, live: int) -> Iterator[tuple[int, int]]:
        """Yield (worker, number of blocks that it alone holds) among the `live` workers."""
        held = {(1 << self.num) - 1: self.full, **(self.parts or {})}
        once = several = 0
        for blocks, workers in held.items():
            some = workers & live
            several |= blocks if some & (some - 1) else once & blocks if some else 0
            once |= blocks if some else 0
        for blocks, workers in held.items():
            some = workers & live
            if some and not some & (some - 1) and (num := (blocks & ~several).bit_count()):
                yield some, num

    def leading(self, workers: int) -> Iterator[tuple[int, int]]:
        """Yield (workers, number of leading blocks held) for `workers` that do not hold the whole edge."""
        if self.parts:
            for blocks, mask in self.parts.items():
                if mask & workers:
                    yield mask & workers, (blocks & ~(blocks + 1)).bit_length()
                    workers &= ~mask
        if workers:
            yield workers, 0


class Edges:
    def __init__(self, holdings: Holdings | None = None) -> None:
        self._holdings = holdings
        self.num_blocks = 0
        self._heads: dict[int, Edge] = {}
        self._head_of = array("Q")  # by edge number; a list of edges would be walked by each collection
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._heads)

    def at(self, block: int) -> Edge:
        """Return the edge of a block number."""
        return self._heads[self._head_of[block >> POSITION_BITS]]

    def hash_at(self, block: int) -> BlockHash:
        position = (block & POSITION) * 8
        return BlockHash(int.from_bytes(self.at(block).hashes[position : position + 8], "little"))

    # lookup ------------------------------------------------------------------------------------

    def walk(self, hashes: Sequence[BlockHash], workers: int) -> list[tuple[int, int]]:
        """Count leading blocks held by `workers`: pairs (workers, blocks), without those that hold none."""
        found: list[tuple[int, int]] = []
        heads, depth, num = self._heads, 0, len(hashes)
        get = heads.get
        while depth < num and (edge := get(hashes[depth])) is not None:
            end = depth + edge.num
            if end <= num and hashes[end - 1] == edge.last:
                still = workers & edge.full
            else:
                end = depth + edge.branch  # if an edge begins there, it is where the prompt leaves this one
                if (
                    not edge.branch
                    or end >= num
                    or hashes[end - 1] != edge.branch_last
                    or hashes[end] not in heads
                ):
                    end = depth + edge.match(hashes, depth)
                still = workers & edge.holding(end - depth)
            if still != workers:
                for some, leading in edge.leading(workers ^ still):
                    if depth + leading:
                        found.append((some, depth + leading))
                if not still:
                    return found
                workers = still
            depth = end
        if depth:
            found.append((workers, depth))
        return found

    def along(self, hashes: Sequence[BlockHash]) -> Iterator[tuple[int, int]]:
        """Yield the edges along a prompt: (edge number, number of its leading blocks in the prompt)."""
        depth = 0
        while depth < len(hashes) and (edge := self._heads.get(hashes[depth])) is not None:
            num = edge.match(hashes, depth)
            yield edge.number, num
            depth += num

    # change ------------------------------------------------------------------------------------

    def store(self, bit: int, hashes: Sequence[BlockHash], parent: int | None) -> list[tuple[int, int, int]]:
        """Store a run for a worker behind the block number `parent` (None: at the root).

        Returns parts: (number of the first block, number of blocks, bitmap of those held before). Known
        blocks are found where they are, new ones prolong their edge or make one.
        """
        edge, position = (None, 0) if parent is None else (self.at(parent), (parent & POSITION) + 1)
        done, num = 0, len(hashes)
        parts: list[tuple[int, int, int]] = []
        while done < num:
            before = count = 0
            if edge and position < edge.num:
                count = edge.match(hashes, done, position)
                before = edge.held(bit)
            if not edge or not count:
                if (known := self._heads.get(hashes[done])) is not None:
                    edge, position = known, 0
                    continue
                last = 0 if parent is None else self.hash_at(parent)
                last = hashes[done - 1] if done else last
                edge, position, before, count = self._add(edge, position, hashes, done, bit, last)
            span = ((1 << count) - 1) << position
            if before & span != span and not edge.full & bit:
                edge.hold(bit, before | span, before)
            parts.append((edge.number << POSITION_BITS | position, count, (before & span) >> position))
            done, position = done + count, position + count
        if self._holdings is not None:
            before_it = None if parent is None else self.hash_at(parent)
            self._notify_stored(self._holdings, bit, hashes, before_it, parts)
        return parts

    def _notify_stored(
        self,
        holdings: Holdings,
        bit: int,
        hashes: Sequence[BlockHash],
        before: BlockHash | None,
        parts: list[tuple[int, int, int]],
    ) -> None:
        """Notify `holdings` of the stretches of a run that the worker did not hold."""
        held = first = done = 0
        for _, count, some in parts:
            held |= some << done
            done += count
        while first < done:
            rest = held >> first
            if rest & 1:
                first += (~rest & (rest + 1)).bit_length() - 1
                continue
            end = first + (rest & -rest).bit_length() - 1 if rest else done
            stretch = hashes if end - first == len(hashes) else hashes[first:end]
            holdings.hold(bit, stretch, hashes[first - 1] if first else before)
            first = end

    def _add(
        self, edge: Edge | None, position: int, hashes: Sequence[BlockHash], first: int, bit: int, last: int
    ) -> tuple[Edge, int, int, int]:
        """Add new blocks behind a position (after the block `last`), up to the next known head.

        Returns the edge, the position, the bitmap held before, and the number of blocks added.
        """
        end = len(hashes)
        if not self._heads.keys().isdisjoint(hashes[first:] if first else hashes):
            end = next(i for i in range(first, end) if hashes[i] in self._heads)
        before = 0
        if edge and position == edge.num < MAX_BLOCKS:
            end = min(end, first + MAX_BLOCKS - position)
            before = edge.held(bit)
            edge.extend(array("Q", hashes[first:end]).tobytes(), hashes[end - 1], bit)
        else:
            if edge and position < edge.num:
                edge.branch_at(position)
            end, position = min(end, first + MAX_BLOCKS), 0
            edge = self._make(hashes[first:end], last)
        self.num_blocks += end - first
        return edge, position, before, end - first

    def release(self, bit: int, block: int) -> None:
        """Remove a worker as the holder of a block."""
        edge = self.at(block)
        before, num = edge.held(bit), edge.num
        if self._holdings is not None:
            self._holdings.release(bit, self.hash_at(block))
        edge.hold(bit, before & ~(1 << (block & POSITION)), before)
        self._trimmed(edge, num, is_empty=edge.trim())

    def hold_known(self, bit: int, block: int, num: int = 1) -> int:
        """Add a worker as holder of `num` known blocks; returns the bitmap of those held before."""
        edge, position = self.at(block), block & POSITION
        before, span = edge.held(bit), ((1 << num) - 1) << position
        if before & span != span:
            edge.hold(bit, before | span, before)
            self._notify_held(bit, edge, span & ~before)
        return (before & span) >> position

    def grant(self, bit: int, number: int, blocks: int) -> None:
        """Add a worker as holder of these blocks of an edge of which it held none."""
        edge = self._heads[self._head_of[number]]
        edge.hold(bit, blocks, 0)
        self._notify_held(bit, edge, blocks)

    def _notify_held(self, bit: int, edge: Edge, blocks: int) -> None:
        """Notify `holdings` of blocks of an edge one by one, since their neighbours may be held by other
        workers only."""
        if self._holdings is not None:
            own = memoryview(edge.hashes).cast("Q")
            while blocks:
                position = (blocks & -blocks).bit_length() - 1
                before = BlockHash(own[position - 1]) if position else None
                self._holdings.hold(bit, [BlockHash(own[position])], before)
                blocks &= blocks - 1

    def forget(self, workers: int, first: int, num: int) -> bool:
        """Remove workers as holders from `num` edges starting at number `first`; False if that was the last
        edge."""
        for head in self._head_of[first : first + num]:
            if (edge := self._heads.get(head)) is not None:
                before = edge.num
                self._trimmed(edge, before, is_empty=edge.forget(workers))
        return first + num < len(self._head_of)

    def held_by(self, workers: int, first: int, num: int) -> Iterator[bytes]:
        """Yield the packed hashes that these workers hold in `num` edges starting at number `first`."""
        for head in self._head_of[first : first + num]:
            if (edge := self._heads.get(head)) is None:
                continue
            masks = [(1 << edge.num) - 1] if edge.full & workers else []
            masks += [blocks for blocks, holders in (edge.parts or {}).items() if holders & workers]
            for blocks in masks:
                yield edge.hashes[: blocks.bit_length() * 8]

    def exclusive(self, live: int, first: int, num: int) -> tuple[dict[int, int], bool]:
        """Count by bit the blocks with one holder among `live`, in `num` edges starting at number `first`;
        False if that was the last edge."""
        found: dict[int, int] = {}
        for head in self._head_of[first : first + num]:
            if (edge := self._heads.get(head)) is not None:
                for bit, blocks in edge.exclusive(live):
                    found[bit] = found.get(bit, 0) + blocks
        return found, first + num < len(self._head_of)

    def republish(self, bit: int) -> None:
        """Notify `holdings` of all blocks of a worker again, first with the holes and then releasing them,
        since a block behind a hole is placed by the block before."""
        assert self._holdings is not None
        holes: list[BlockHash] = []
        for edge in self._heads.values():
            if blocks := edge.held(bit):
                own = [BlockHash(each) for each in memoryview(edge.hashes).cast("Q")[: blocks.bit_length()]]
                self._holdings.hold(bit, own, BlockHash(edge.before) if edge.before else None)
                holes += [block for i, block in enumerate(own) if not blocks >> i & 1]
        for block in holes:
            self._holdings.release(bit, block)

    def _make(self, hashes: Sequence[BlockHash], before: int) -> Edge:
        head = hashes[0]
        if self._free:
            number = self._free.pop()
            self._head_of[number] = head
        else:
            number = len(self._head_of)
            if number == MAX_EDGES:
                raise OverflowError(f"the index is full: {MAX_EDGES:,} edges")
            self._head_of.append(head)
        packed = array("Q", hashes).tobytes()
        edge = self._heads[head] = Edge(number, packed, hashes[-1], len(hashes), before)
        return edge

    def _trimmed(self, edge: Edge, num_before: int, *, is_empty: bool) -> None:
        if is_empty:
            self.num_blocks -= num_before
            del self._heads[self._head_of[edge.number]]
            self._free.append(edge.number)
        else:
            self.num_blocks -= num_before - edge.num
