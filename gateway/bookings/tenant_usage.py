"""Quota usage of tenants in memory shared by the processes of a host: a column per tenant, a row per process.

    names of columns │ cells of each column: active of each row │ requests │ tokens │ tokens given back
                     │ deficits of its buckets, of requests and of tokens │ when that was written

As in `shared_ledger.py` each row is written by its own process only, so that no cell needs a lock; a column
is claimed under one. Requests and tokens only grow: each process takes from its own buckets what the others'
have grown by since it last looked. A process that meets a tenant begins with the others' deficits. The row of
a process that died starts again from zero.
"""

from typing import Final

from gateway.bookings.shared_ledger import WORD_BYTES, Lock, name_of

MAX_COLUMNS: Final = 1024
"""Tenants with limits that a host can distinguish; each process counts further ones for itself."""
CELLS: Final = 7
ACTIVE: Final = 0
REQUESTS: Final = 1
TOKENS: Final = 2
GIVEN: Final = 3
NO_REQUESTS: Final = 4
NO_TOKENS: Final = 5
AT: Final = 6
FINE: Final = 1000
"""Deficits are written in thousandths, and times in milliseconds of the host's monotonic clock."""


class QuotaTable:
    """Shared words of quota usage, which begin as zeros."""

    def __init__(
        self, memory: memoryview, num_rows: int, lock: Lock, *, max_columns: int = MAX_COLUMNS
    ) -> None:
        self.words = memory.cast("B").cast("Q")
        self.num_rows = num_rows
        self._lock = lock
        self._max_columns = max_columns

    def __repr__(self) -> str:
        used = sum(map(bool, self.words[: self._max_columns]))
        return f"QuotaTable(rows={self.num_rows}, columns={used} of {self._max_columns})"

    @staticmethod
    def num_bytes(num_rows: int, max_columns: int = MAX_COLUMNS) -> int:
        return WORD_BYTES * max_columns * (1 + CELLS * num_rows)

    def of(self, tenant: str, row: int) -> "QuotaUsage | None":
        """Return a tenant's usage as one process sees it; None where no column is left."""
        name = name_of(tenant)
        with self._lock():
            names = self.words[: self._max_columns].tolist()
            wanted = name if name in names else 0
            if wanted not in names:
                return None
            column = names.index(wanted)
            self.words[column] = name
        return QuotaUsage(self, self._max_columns + column * CELLS * self.num_rows, row)

    def release(self, row: int) -> None:
        """Zero the row of a process that is gone."""
        for at in range(self._max_columns + row, len(self.words), self.num_rows):
            self.words[at] = 0


class QuotaUsage:
    """Cells of one tenant, and how much of the others' usage was seen."""

    __slots__ = ("_words", "_at", "_row", "_num_rows", "_seen")

    def __init__(self, table: QuotaTable, at: int, row: int) -> None:
        self._words = table.words
        self._at = at
        self._row = row
        self._num_rows = table.num_rows
        self._seen = [self._elsewhere(cell) for cell in range(CELLS)]

    def num_active_elsewhere(self) -> int:
        return self._elsewhere(ACTIVE)

    def set_active(self, num: int) -> None:
        self._words[self._at + self._row] = num

    def add(self, cell: int, num: int) -> None:
        """Add to this process's REQUESTS, TOKENS or GIVEN."""
        self._words[self._at + cell * self._num_rows + self._row] += num

    def grown_elsewhere(self, cell: int) -> int:
        """Return the others' growth of a cell since the last call."""
        total, seen = self._elsewhere(cell), self._seen[cell]
        self._seen[cell] = total
        return max(total - seen, 0)  # less where a process has died

    def publish_deficit(self, num_requests: float, num_tokens: float, now: float) -> None:
        """Publish the deficits of this process's buckets."""
        words, num = self._words, self._num_rows
        at = self._at + self._row
        words[at + NO_REQUESTS * num] = int(num_requests * FINE)
        words[at + NO_TOKENS * num] = int(num_tokens * FINE)
        words[at + AT * num] = int(now * FINE)

    def deficit_elsewhere(self, cell: int, rate: float, now: float) -> float:
        """Return the largest deficit by now in another process's bucket, NO_REQUESTS or NO_TOKENS."""
        most = 0.0
        for row in range(self._num_rows):
            if row != self._row:
                at = self._at + row
                since_s = now - self._words[at + AT * self._num_rows] / FINE
                missing = self._words[at + cell * self._num_rows] / FINE
                most = max(most, missing - max(since_s, 0.0) * rate)
        return most

    def _elsewhere(self, cell: int) -> int:
        at, own = self._at + cell * self._num_rows, self._row
        return sum(self._words[at : at + self._num_rows].tolist()) - int(self._words[at + own])
