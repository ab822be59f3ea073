"""Assumed index of one of several processes, which includes the others' requests in flight.

Combines the index of this process's own decisions with the promises of the host's other processes
(`bookings/promises.py`), read in `extend` and written in `pin` and `unpin`, which get the same list.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.bookings.promises import Promises, shared_positions
from gateway.bookings.shared_ledger import Columns, Table
from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex

LONGEST_S: Final = 3600.0
"""Longest promise. A promise ends with its request; this bounds what a fault could leave behind."""


IN_FLIGHT: Final = -1
"""Duration of a promise that holds until its request ends."""

OnPromise = Callable[[WorkerId, list[BlockHash], int], None]
"""Called with blocks promised at a worker, and for how many milliseconds: IN_FLIGHT; 0 withdraws them."""


MIN_BLOCKS: Final = 8
"""Shortest prompt that is shared, in blocks: shorter ones are worth less than two requests' work
(`REQUEST_TOKENS`), and they are many."""

MAX_PROMISED: Final = 1 << 12
"""Prompts in flight that are shared: a batch may have thousands, and would overwrite those of others."""


class _Promised:
    """Promise of one request: its prompt's blocks, and the position and slot of each shared one."""

    __slots__ = ("hashes", "slots")

    def __init__(self, hashes: Sequence[BlockHash]) -> None:
        self.hashes = hashes
        self.slots: list[tuple[int, int]] = []

    def blocks(self) -> list[BlockHash]:
        return [self.hashes[position] for position, _ in self.slots]


class SharedAssumedIndex(AssumedIndex):
    """Assumed index of process `row`; `now` must be a clock that all processes of the host share."""

    def __init__(self, table: Table, row: int) -> None:
        super().__init__()
        self.on_promise: OnPromise | None = None
        self.on_forget: Callable[[WorkerId], None] | None = None
        self._words = table.words
        self._columns = Columns(table)
        self._column_of: dict[WorkerId, int] = {}
        self._promises = Promises(table, row)
        self._now = 0.0
        # By worker and the identity of a pinned prompt, which is kept, so that no other one has it meanwhile.
        self._promised: dict[tuple[WorkerId, int], _Promised] = {}

    def add_worker(self, worker: WorkerId, *, keep_s: float, max_blocks: int) -> None:
        super().add_worker(worker, keep_s=keep_s, max_blocks=max_blocks)
        self._claim(worker)

    def drop_worker(self, worker: WorkerId) -> None:
        if worker in self._workers:
            self._promised = {key: each for key, each in self._promised.items() if key[0] != worker}
            self._forget(worker)
            self._column_of.pop(worker, None)
        super().drop_worker(worker)

    def reset_worker(self, worker: WorkerId) -> None:
        super().reset_worker(worker)
        self._forget(worker)

    def pin(self, worker: WorkerId, hashes: Sequence[BlockHash], first: int = 0) -> None:
        super().pin(worker, hashes, first)
        num, column, key = len(hashes), self._column_of.get(worker), (worker, id(hashes))
        if num < MIN_BLOCKS or first >= num or column is None:
            return
        if key in self._promised or len(self._promised) >= MAX_PROMISED:
            return
        promised = self._promised[key] = _Promised(hashes)
        until_ms = int((self._now + LONGEST_S) * 1000)
        for position in shared_positions(num):
            if position >= first:
                slot = self._promises.put(hashes[position], column, until_ms)
                promised.slots.append((position, slot))
        if self.on_promise is not None:
            self.on_promise(worker, promised.blocks(), IN_FLIGHT)

    def unpin(
        self, worker: WorkerId, hashes: Sequence[BlockHash], now: float, first: int = 0, *, was_run: bool
    ) -> None:
        super().unpin(worker, hashes, now, first, was_run=was_run)
        promised = self._promised.pop((worker, id(hashes)), None)
        if promised is None or (known := self._workers.get(worker)) is None:
            return
        column = self._column_of.get(worker, -1)
        ended: dict[float, list[BlockHash]] = {}
        for position, slot in promised.slots:
            if not known.is_pinned(hashes, position):  # else another request of this process promises it
                block, until = hashes[position], known.kept_until(hashes, position)
                self._promises.change(slot, block, column, int(until * 1000))
                if self.on_promise is not None:
                    ended.setdefault(until, []).append(block)
        if self.on_promise is not None:
            for until, blocks in ended.items():
                self.on_promise(worker, blocks, max(0, int((until - now) * 1000)))

    def extend(self, hashes: Sequence[BlockHash], held: dict[WorkerId, int], now: float) -> None:
        super().extend(hashes, held, now)
        if len(hashes) < MIN_BLOCKS:
            return
        self._now = now
        if self._words[0] != self._columns.generation:
            self._renew()
        for column, depth in self._promises.holders(hashes, int(now * 1000)):
            worker = self._columns.worker(column)
            if worker in self._workers and depth > held.get(worker, 0):
                held[worker] = depth

    def in_flight(self) -> Iterator[tuple[WorkerId, list[BlockHash]]]:
        """Yield this process's promises for its requests in flight."""
        for promised in self._promised.values():
            position, slot = promised.slots[0]
            if self._words[slot] == promised.hashes[position]:  # else it was overwritten
                worker = self._columns.worker(self._promises.column_in(slot))
                if worker in self._workers:
                    yield worker, promised.blocks()

    def _claim(self, worker: WorkerId) -> None:
        column = self._columns.of(worker)
        if column is not None:
            self._column_of[worker] = column

    def _renew(self) -> None:
        """Claim columns again after they were reassigned, and drop the promises in the old ones."""
        self._columns.renew()
        self._promises.clear()
        self._column_of = {}
        for worker in self._workers:
            self._claim(worker)

    def _forget(self, worker: WorkerId) -> None:
        """Withdraw all promises at a worker except those in flight."""
        if self.on_forget is not None:
            self.on_forget(worker)
        column = self._column_of.get(worker)
        if column is not None and self._promises.num_puts:
            promised = [each for key, each in self._promised.items() if key[0] == worker]
            keep = {block for each in promised for block in each.blocks()}
            self._promises.drop_column(column, keep)
