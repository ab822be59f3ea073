"""What the other processes of this host have sent where: a hash table per row of the shared memory.

One process knows of its own requests in flight which blocks they will leave (`index/assumed.py`). Of
those of its neighbours it must know too, or equal prompts that come to two processes at once pull towards
different workers, each to where it was first sent by that process. Too dear to tell each block: told are
the last block of a request and every thirty-second; since hashes are chained, one of them found in a prompt
says that all before it are there.

    bucket of 4 slots, hashes in the first half of the region, meanings in the second:
    hash of the block │ until when (ms, monotonic clock of the host), column of the worker

Only its own process writes a row. A full bucket gives up what ends soonest. A reader may meet a slot that
is just being written and credit one worker with the other's block, for this one decision; nothing is lost
by it, and no lock is worth that.
"""

from collections.abc import Container, Iterator, Sequence
from functools import lru_cache

from gateway.bookings.shared_ledger import MAX_COLUMNS, PROMISE_SLOTS, Table
from gateway.core.blocks import BlockHash

STRIDE = 32
"""Every which block is told of a long run: 512 tokens at vLLM's usual size."""
_BUCKET_BITS, _COLUMN_BITS = 2, 12
BUCKET = 1 << _BUCKET_BITS
_BUCKETS = PROMISE_SLOTS // BUCKET - 1
assert MAX_COLUMNS == 1 << _COLUMN_BITS and PROMISE_SLOTS & (PROMISE_SLOTS - 1) == 0


@lru_cache
def told(num_blocks: int) -> tuple[int, ...]:
    """Positions, from the last one back, of the blocks that are told of a prompt."""
    last = (num_blocks - 1,) if num_blocks % STRIDE else ()
    return *last, *reversed(range(STRIDE - 1, num_blocks, STRIDE))


class Promises:
    """The promises of one row to write, and of all others to read."""

    def __init__(self, table: Table, row: int) -> None:
        self._words = table.words
        self._own = table.promises_at(row)
        self.num_puts = 0
        self._others = [table.promises_at(other) for other in range(table.num_rows) if other != row]

    def put(self, block: BlockHash, column: int, until_ms: int) -> int:
        """Promise a block at a worker; its slot, for `change`."""
        words, at = self._words, self._own + ((block & _BUCKETS) << _BUCKET_BITS)
        self.num_puts += 1
        slot = at + (self.num_puts & (BUCKET - 1))
        if any(words[at + PROMISE_SLOTS : at + PROMISE_SLOTS + BUCKET]):
            slot = self._choose(at, block, column)
        words[slot] = block
        words[slot + PROMISE_SLOTS] = until_ms << _COLUMN_BITS | column
        return slot

    def _choose(self, at: int, block: BlockHash, column: int) -> int:
        """Where the promise is already, else the one that ends first; a free one ended at 0."""
        meanings = self._words[at + PROMISE_SLOTS : at + PROMISE_SLOTS + BUCKET].tolist()
        for slot, meaning in enumerate(meanings, at):
            if self._words[slot] == block and meaning & (MAX_COLUMNS - 1) == column:
                return slot
        return at + meanings.index(min(meanings))

    def change(self, slot: int, block: BlockHash, column: int, until_ms: int) -> None:
        """When a promise ends, if it was not given up for others; 0 takes it back."""
        words = self._words
        if words[slot] == block and words[slot + PROMISE_SLOTS] & (MAX_COLUMNS - 1) == column:
            words[slot + PROMISE_SLOTS] = until_ms << _COLUMN_BITS | column if until_ms else 0

    def withdraw(self, block: BlockHash, column: int) -> None:
        """A promise of which the slot is not known."""
        at = self._own + ((block & _BUCKETS) << _BUCKET_BITS)
        for slot in range(at, at + BUCKET):
            self.change(slot, block, column, 0)

    def column_in(self, slot: int) -> int:
        return self._words[slot + PROMISE_SLOTS] & (MAX_COLUMNS - 1)

    def drop_column(self, column: int, keep: Container[BlockHash] = ()) -> None:
        """All that this row has promised at a worker, but of the blocks in `keep`."""
        for slot in range(self._own, self._own + PROMISE_SLOTS):
            block, meaning = self._words[slot], self._words[slot + PROMISE_SLOTS]
            if meaning and meaning & (MAX_COLUMNS - 1) == column and block not in keep:
                self._words[slot + PROMISE_SLOTS] = 0

    def clear(self) -> None:
        for slot in range(self._own, self._own + PROMISE_SLOTS):
            self._words[slot + PROMISE_SLOTS] = 0

    def holders(self, hashes: Sequence[BlockHash], now_ms: int) -> Sequence[tuple[int, int]]:
        """(column, leading blocks) of others' promises for a prompt, the longest first."""
        words, others = self._words, self._others
        found: list[int] | None = None
        for position in told(len(hashes)):
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
        """Of the buckets in which a block was seen; `found` holds position and bucket in turn."""
        for position, at in zip(found[::2], found[1::2], strict=True):
            for slot in range(at, at + BUCKET):
                meaning = self._words[slot + PROMISE_SLOTS]
                if self._words[slot] == hashes[position] and meaning >> _COLUMN_BITS > now_ms:
                    yield meaning & (MAX_COLUMNS - 1), position + 1
