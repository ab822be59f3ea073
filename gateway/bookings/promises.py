"""Promises: blocks that other processes of this host will have cached, a hash table per row of the shared
memory.

Each process knows which blocks its own requests in flight will leave (`index/assumed.py`). It must know its
neighbours' too, or equal prompts that come to two processes at once pull towards different workers, each to
where its process first sent one. Sharing each block would cost too much: shared are the last block of a
request and every thirty-second; since hashes are chained, finding one of them in a prompt proves that all
before it are there.

    bucket of 4 slots, hashes in the first half of the region, meanings in the second:
    hash of the block │ until when (ms, monotonic clock of the host), column of the worker

Only its own process writes a row. A full bucket overwrites what ends soonest. A reader may meet a slot during
its write and credit one worker with another's block, for this one decision; nothing is lost by that, and no
lock is worth it.
"""

from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from typing import Final

from gateway.bookings.shared_ledger import MAX_COLUMNS, PROMISE_SLOTS, Table
from gateway.core.blocks import BlockHash

STRIDE: Final = 32
"""Every which block of a long run is shared: 512 tokens at vLLM's usual size."""
_BUCKET_BITS: Final = 2
_COLUMN_BITS: Final = 12
BUCKET: Final = 1 << _BUCKET_BITS
_BUCKETS: Final = PROMISE_SLOTS // BUCKET - 1
assert MAX_COLUMNS == 1 << _COLUMN_BITS and PROMISE_SLOTS & (PROMISE_SLOTS - 1) == 0


@lru_cache
def shared_positions(num_blocks: int) -> tuple[int, ...]:
    """Return the positions of a prompt's shared blocks, from the last one back."""
    last = (num_blocks - 1,) if num_blocks % STRIDE else ()
    return *last, *reversed(range(STRIDE - 1, num_blocks, STRIDE))


class Promises:
    """Promises of one process's row (to write) and of all other rows (to read)."""

    def __init__(self, table: Table, row: int) -> None:
        self._words = table.words
        self._own = table.promises_at(row)
        self.num_puts = 0
        self._others = [table.promises_at(other) for other in range(table.num_rows) if other != row]

    def put(self, block: BlockHash, column: int, until_ms: int) -> int:
        """Promise a block at a worker; returns its slot, for `change`."""
        words, at = self._words, self._own + ((block & _BUCKETS) << _BUCKET_BITS)
        self.num_puts += 1
        slot = at + (self.num_puts & (BUCKET - 1))
        if any(words[at + PROMISE_SLOTS : at + PROMISE_SLOTS + BUCKET]):
            slot = self._choose(at, block, column)
        words[slot] = block
        words[slot + PROMISE_SLOTS] = until_ms << _COLUMN_BITS | column
        return slot

    def _choose(self, at: int, block: BlockHash, column: int) -> int:
        """Return the slot of the same promise, else of the one that ends first; a free one ended at 0."""
        meanings = self._words[at + PROMISE_SLOTS : at + PROMISE_SLOTS + BUCKET].tolist()
        for slot, meaning in enumerate(meanings, at):
            if self._words[slot] == block and meaning & (MAX_COLUMNS - 1) == column:
                return slot
        return at + meanings.index(min(meanings))

    def change(self, slot: int, block: BlockHash, column: int, until_ms: int) -> None:
        """Change when a promise ends, if it was not overwritten; 0 withdraws it."""
        words = self._words
        if words[slot] == block and words[slot + PROMISE_SLOTS] & (MAX_COLUMNS - 1) == column:
            words[slot + PROMISE_SLOTS] = until_ms << _COLUMN_BITS | column if until_ms else 0

    def withdraw(self, block: BlockHash, column: int) -> None:
        """Withdraw a promise without knowing its slot."""
        at = self._own + ((block & _BUCKETS) << _BUCKET_BITS)
        for slot in range(at, at + BUCKET):
            self.change(slot, block, column, 0)

    def column_in(self, slot: int) -> int:
        return self._words[slot + PROMISE_SLOTS] & (MAX_COLUMNS - 1)

    def drop_column(self, column: int, keep: Container[BlockHash] = ()) -> None:
        """Drop all promises of this row at a worker, except those of the blocks in `keep`."""
        for slot in range(self._own, self._own + PROMISE_SLOTS):
            block, meaning = self._words[slot], self._words[slot + PROMISE_SLOTS]
            if meaning and meaning & (MAX_COLUMNS - 1) == column and block not in keep:
                self._words[slot + PROMISE_SLOTS] = 0

    def clear(self) -> None:
        for slot in range(self._own, self._own + PROMISE_SLOTS):
            self._words[slot + PROMISE_SLOTS] = 0

    def holders(self, hashes: Sequence[BlockHash], now_ms: int) -> Sequence[tuple[int, int]]:
        """Return (column, leading blocks) of others' promises for a prompt, the longest first."""
        words, others = self._words, self._others
        found: list[int] | None = None
        for position in shared_positions(len(hashes)):
            block = hashes[position]
            bucket = (block & _BUCKETS) << _BUCKET_BITS
            for region in others:
                at = region + bucket
                if block in words[at : at + BUCKET]:
                    found = found or []
                    found += position, at
        return list(self._read(hashes, found, now_ms)) if found else ()

    def _read(
        self, hashes: Sequence[BlockHash], found: Sequence[int], now_ms: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the valid promises of buckets that contain a block; `found` has position and bucket
        alternately."""
        for position, at in zip(found[::2], found[1::2], strict=True):
            for slot in range(at, at + BUCKET):
                meaning = self._words[slot + PROMISE_SLOTS]
                if self._words[slot] == hashes[position] and meaning >> _COLUMN_BITS > now_ms:
                    yield meaning & (MAX_COLUMNS - 1), position + 1
