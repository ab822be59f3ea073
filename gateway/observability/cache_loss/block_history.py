"""Block hashes that some worker once had cached, by whom last, and how it lost them if that is known.

A table of fixed size with two places for each hash: what is neither young nor lucky is overwritten. A
hash names its block and all before it, so a block that is found tells that those before it were cached too,
found or not.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from mmap import mmap

from gateway.core.worker import WorkerId

SLOTS = 1 << 20
"""12 bytes each, taken from the system as they are used: a fleet of a million blocks."""

FEW_BLOCKS = 64
"""Are looked at one by one; of more, SAMPLE on the way tell on which side the border is."""
SAMPLE = 4
PORTION_BLOCKS = 1000
"""Half a millisecond."""

WAY_BITS = 2

MAX_LIVES = 10_000
"""Workers by name, those that are gone too."""


class Way(IntEnum):
    """How a block was last heard of."""

    HELD = 1
    EVICTED = 2
    RESET = 3


class Lives:
    """A worker's caches one after the other, numbered: each begins empty, where the one before was lost."""

    def __init__(self) -> None:
        self._life_of: dict[WorkerId, int] = {}
        self._worker_of: dict[int, WorkerId] = {}
        self._next = 1

    def of(self, worker: WorkerId) -> int:
        """The number of the one that it has now."""
        life = self._life_of.get(worker)
        if life is None:
            life = self._life_of[worker] = self._next
            self._worker_of[life] = worker
            self._worker_of.pop(life - MAX_LIVES, None)
            self._next += 1
        return life

    def worker(self, life: int) -> WorkerId | None:
        """Whose it is or was; None where that is long ago, or nobody's."""
        return self._worker_of.get(life)

    def is_over(self, life: int) -> bool:
        worker = self._worker_of.get(life)
        return worker is None or self._life_of.get(worker) != life

    def end(self, worker: WorkerId) -> None:
        """What it held is lost."""
        self._life_of.pop(worker, None)


class Past:
    """`num_slots` is a power of two."""

    def __init__(self, num_slots: int = SLOTS) -> None:
        self._hashes = memoryview(mmap(-1, 8 * num_slots)).cast("Q")
        self._heard = memoryview(mmap(-1, 4 * num_slots)).cast("I")
        self._mask = num_slots - 1

    def find(self, block: int) -> int:
        """What was heard of it, for `way_of` and `life_of`; 0 where it is not known."""
        at = block & self._mask
        if self._hashes[at] == block:
            return self._heard[at]
        at ^= 1
        return self._heard[at] if self._hashes[at] == block else 0

    def depth(self, blocks: Sequence[int], first: int) -> int:
        """How many of a prompt's blocks were cached; at least `first` are taken for known."""
        low, high = first, len(blocks)
        while high - low > FEW_BLOCKS:
            middle = (low + high) // 2
            if any(map(self.find, blocks[middle - SAMPLE : middle])):
                low = middle
            else:
                high = middle
        while high > first and not self.find(blocks[high - 1]):
            high -= 1
        return high

    def hold(self, blocks: Sequence[int], life: int) -> Iterator[None]:
        """A prompt's blocks are held in this life of a worker: put those behind the last known as such, a
        portion at a time."""
        heard = (life << WAY_BITS | Way.HELD) & 0xFFFFFFFF
        for number, block in enumerate(reversed(blocks), 1):
            if self.find(block) == heard:
                break
            self._heard[self._place(block)] = heard
            if number % PORTION_BLOCKS == 0:
                yield

    def lose(self, blocks: Iterable[int], way: Way) -> None:
        """Who held them is kept, where it is known."""
        for block in blocks:
            at = self._place(block)
            self._heard[at] = self._heard[at] >> WAY_BITS << WAY_BITS | way

    def _place(self, block: int) -> int:
        hashes, at = self._hashes, block & self._mask
        if hashes[at] == block:
            return at
        other = at ^ 1
        if hashes[other] == block or (hashes[at] and not hashes[other]):
            at = other
        if hashes[at] != block:
            hashes[at], self._heard[at] = block, 0
        return at


def way_of(heard: int) -> int:
    return heard & (1 << WAY_BITS) - 1


def life_of(heard: int) -> int:
    return heard >> WAY_BITS
