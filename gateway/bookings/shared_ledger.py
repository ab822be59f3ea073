"""Bookings of all processes of one host, in shared memory: a row per process, a column per worker.

Each row is written by its own process only, which copies it from a ledger of its own; so no cell needs a
lock, and the successor of a process that died zeroes its row. Processes meet their workers in different
order: a column is claimed by the worker's name, under a lock, once per process and worker. Words of eight
bytes:

    generation │ host │ lock │ others │ of each row: closed connections │ gateway │ echo │ names of columns
    cells of each column: requests of each row, then tokens of each row │ promises of each row │ -

A load is two sums of adjacent words: 0.5 us for two rows, 0.6 us for eight. Columns of workers that are gone
are reassigned when none is left; this changes the generation, and every process claims its columns again.
`promises` are those of `promises.py`. With bookings of other hosts, all of them together have the last row
(`remote_hosts.py`): for decisions they are one more process. `host` identifies messages of this host's
processes, `lock` is the last acquisition of the distributed lock that a message ended, `others` counts
gateways of other hosts. A row's `gateway` is the id under which its process publishes, `echo` the last of its
own messages that came back: bookings since then count for other gateways too (`unconfirmed.py`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from gateway.bookings.unconfirmed import UnconfirmedBookings
from gateway.core.ledger import Booking, Ledger, Load, Phase, PrefillQueue
from gateway.core.worker import WorkerId

WORD_BYTES: Final = 8
MAX_COLUMNS: Final = 4096
"""Workers that a host can distinguish at once; a fleet has tens or hundreds."""
PROMISE_SLOTS: Final = 16_384
"""Promises per row: a word of hash and a word of meaning each, 256 KiB."""

OTHERS: Final = 3
HEADER: Final = 4
PER_ROW: Final = 3
"""Words of the table, and of each row, before names and cells."""

Lock = Callable[[], AbstractContextManager[object]]
"""Excludes the other processes while the context is open."""


def name_of(text: str) -> int:
    """Hash the name of a worker or tenant; never 0, which is a free column."""
    return int.from_bytes(blake2b(text.encode(), digest_size=WORD_BYTES).digest()) or 1


class Table:
    """Layout of the shared words, which begin as zeros, and their writers."""

    def __init__(
        self, memory: memoryview, num_rows: int, lock: Lock, *, max_columns: int = MAX_COLUMNS
    ) -> None:
        self.words = memory.cast("B").cast("Q")
        self.num_rows = num_rows
        self._lock = lock
        self._closed_at = HEADER
        self._gateways_at = self._closed_at + num_rows
        self.echo_at = self._gateways_at + num_rows
        self._names_at = self.echo_at + num_rows
        self._cells_at = self._names_at + max_columns
        self._promises_at = self._cells_at + max_columns * 2 * num_rows

    def __repr__(self) -> str:
        used = sum(map(bool, self.words[self._names_at : self._cells_at]))
        return f"Table(rows={self.num_rows}, columns={used} of {self._cells_at - self._names_at})"

    @staticmethod
    def num_bytes(num_rows: int, max_columns: int = MAX_COLUMNS) -> int:
        per_row = PER_ROW + 2 * max_columns + 2 * PROMISE_SLOTS
        return WORD_BYTES * (HEADER + max_columns + per_row * num_rows + 1)

    @property
    def nowhere(self) -> int:
        """Index of a word that is never read."""
        return self.promises_at(self.num_rows)

    @property
    def generation(self) -> int:
        return self.words[0]

    @property
    def lock_number(self) -> int:
        return self.words[2]

    def host(self, proposed: int) -> int:
        """Return the number of the host: the one that was proposed first."""
        with self._lock():
            self.words[1] = self.words[1] or proposed
            return self.words[1]

    def set_lock_number(self, number: int) -> None:
        self.words[2] = number

    def publishes_as(self, row: int, gateway: int) -> None:
        self.words[self._gateways_at + row] = gateway

    def confirm_own(self, gateway: int, seq: int) -> None:
        """Record that a message of one of this host's processes has come back."""
        gateways = self.words[self._gateways_at : self.echo_at].tolist()
        if gateway in gateways:
            at = self.echo_at + gateways.index(gateway)
            self.words[at] = max(seq, self.words[at])

    def set_num_others(self, num_gateways: int) -> None:
        """Set the number of gateways of other hosts."""
        self.words[OTHERS] = num_gateways

    def cells_at(self, column: int) -> int:
        return self._cells_at + column * 2 * self.num_rows

    def promises_at(self, row: int) -> int:
        return self._promises_at + row * 2 * PROMISE_SLOTS

    def num_closed(self, row: int) -> int:
        return self.words[self._closed_at + row]

    def closed(self, row: int) -> None:
        """Count one more closed client connection of a process."""
        self.words[self._closed_at + row] += 1

    def release(self, row: int) -> None:
        """Zero the row of a process that is gone: its bookings, promises and counters."""
        self._zero(slice(self._cells_at + row, self._promises_at, self.num_rows))
        self._zero(slice(self.promises_at(row), self.promises_at(row + 1)))
        for at in (self._closed_at, self._gateways_at, self.echo_at):
            self.words[at + row] = 0

    def column(self, worker: WorkerId) -> int | None:
        """Return the worker's column, claiming one if needed; None if all belong to workers with load."""
        name = name_of(worker)
        with self._lock():
            if (found := self._find(name)) is None and (found := self._find(0)) is None:
                self._reclaim()
                found = self._find(0)
            if found is not None:
                self.words[self._names_at + found] = name
            return found

    def _find(self, name: int) -> int | None:
        try:
            return self.words[self._names_at : self._cells_at].tolist().index(name)
        except ValueError:
            return None

    def _reclaim(self) -> None:
        """Free every column without load: most belong to workers that left long ago."""
        for column in range(self._cells_at - self._names_at):
            at = self.cells_at(column)
            if not any(self.words[at : at + 2 * self.num_rows]):
                self.words[self._names_at + column] = 0
        self.words[0] += 1

    def _zero(self, where: slice) -> None:
        num_words = len(self.words[where])
        self.words[where] = memoryview(bytes(num_words * WORD_BYTES)).cast("Q")


class Columns:
    """Columns of workers as one process knows them, in one generation."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.generation = table.generation
        self._of: dict[WorkerId, int] = {}
        self._workers: dict[int, WorkerId] = {}

    def of(self, worker: WorkerId) -> int | None:
        column = self._of.get(worker)
        if column is None:
            column = self.table.column(worker)
            if column is not None:
                self._of[worker], self._workers[column] = column, worker
        return column

    def worker(self, column: int) -> WorkerId | None:
        """Return the worker of a column, if this process has met it."""
        return self._workers.get(column)

    def renew(self) -> None:
        self.generation = self.table.generation
        self._of, self._workers = {}, {}


@dataclass(slots=True, eq=False)
class _Own:
    """Bookings of this process at one worker, and the positions of their two words."""

    requests_at: int
    tokens_at: int
    num_in_flight: int = 0
    booked_tokens: int = 0
    queue: PrefillQueue = field(default_factory=PrefillQueue)


LOCK_TOKENS: Final = 128
"""Uncached tokens above which a decision waits for the host's lock: two requests' work (`REQUEST_TOKENS`),
the cost of a decision that misses another one."""


class SharedLedger(Ledger):
    """Ledger that adds up the loads of all processes of the host.

    `row` is this process's own, `host_lock` keeps the others' decisions out for a moment, `far_row` is that
    of other hosts. `on_change` is called for each change of own bookings. `unconfirmed`, where kept, adds to
    a load for gateways that decide in the same moment.
    """

    def __init__(
        self, table: Table, row: int, host_lock: Lock = nullcontext, far_row: int | None = None
    ) -> None:
        super().__init__()
        self._far_row = far_row
        self.on_change: Callable[[WorkerId], None] | None = None
        self.unconfirmed: UnconfirmedBookings | None = None
        self._heard_at = table.echo_at + row
        self._host_lock = host_lock
        self._table = table
        self._words = table.words
        self._row = row
        self._num_rows = table.num_rows
        self._columns = Columns(table)
        self._at: dict[WorkerId, int] = {}
        self._own: dict[WorkerId, _Own] = {}

    def __repr__(self) -> str:
        busy = {worker: own for worker, own in self._own.items() if own.num_in_flight}
        return f"SharedLedger(row={self._row}, {busy})"

    def lock(self, num_tokens: int) -> AbstractContextManager[object]:
        """Return the lock for a decision. Short prompts go without it: sending two of them to one worker
        costs less than the lock."""
        return self._host_lock() if num_tokens >= LOCK_TOKENS else super().lock(num_tokens)

    def load(self, worker: WorkerId) -> Load:
        load = self._known(worker)
        if self.unconfirmed is not None and self._words[OTHERS]:
            self.unconfirmed.confirm(self._words[self._heard_at])
            load.num_in_flight += self.unconfirmed.at(worker) * self._words[OTHERS]
        return load

    def _known(self, worker: WorkerId) -> Load:
        words, num = self._words, self._num_rows
        if words[0] != self._columns.generation:
            self._renew()
        at = self._at.get(worker)
        if at is None:
            at = self._claim(worker)
        own = self._own[worker]
        if at < 0:
            return Load(own.num_in_flight, own.booked_tokens, own.queue)
        if num == 2:
            return Load(words[at] + words[at + 1], words[at + 2] + words[at + 3], own.queue)
        return Load(sum(words[at : at + num]), sum(words[at + num : at + 2 * num]), own.queue)

    def book(self, worker: WorkerId, uncached_tokens: int, num_tokens: int, now: float = 0.0) -> Booking:
        if worker not in self._at:
            self._claim(worker)
        own = self._own[worker]
        own.num_in_flight += 1
        own.booked_tokens += uncached_tokens
        self._words[own.requests_at] = own.num_in_flight
        self._words[own.tokens_at] = own.booked_tokens
        if self.unconfirmed is not None:
            self.unconfirmed.booked(worker)
        if self.on_change is not None:
            self.on_change(worker)
        booking = Booking(worker, uncached_tokens, num_tokens)
        own.queue.add(booking, now)
        return booking

    def first_token(self, booking: Booking, now: float = 0.0) -> None:
        if booking.phase is Phase.BOOKED:
            booking.phase = Phase.DECODING
            own = self._own[booking.worker]
            own.booked_tokens -= booking.uncached_tokens
            own.queue.remove(booking, now)
            self._words[own.tokens_at] = own.booked_tokens
            if self.on_change is not None:
                self.on_change(booking.worker)

    def release(self, booking: Booking, now: float = 0.0) -> bool:
        if booking.phase is Phase.RELEASED:
            return False
        self.first_token(booking, now)
        booking.phase = Phase.RELEASED
        own = self._own[booking.worker]
        own.num_in_flight -= 1
        self._words[own.requests_at] = own.num_in_flight
        if self.on_change is not None:
            self.on_change(booking.worker)
        return True

    def own(self) -> dict[WorkerId, Load]:
        """Return this process's load at the workers where it has any."""
        return {w: Load(o.num_in_flight, o.booked_tokens) for w, o in self._own.items() if o.num_in_flight}

    def own_at(self, worker: WorkerId) -> Load:
        own = self._own.get(worker)
        return Load(own.num_in_flight, own.booked_tokens) if own else Load()

    def known(self) -> list[WorkerId]:
        """Return the workers seen so far."""
        return list(self._at)

    def remote(self, worker: WorkerId) -> Load:
        """Return the part of a worker's load that other hosts booked."""
        self._known(worker)
        at = self._at[worker] if self._far_row is not None else -1
        if at < 0 or self._far_row is None:
            return Load()
        return Load(self._words[at + self._far_row], self._words[at + self._num_rows + self._far_row])

    def here(self, worker: WorkerId) -> Load:
        load, remote = self._known(worker), self.remote(worker)
        return Load(load.num_in_flight - remote.num_in_flight, load.booked_tokens - remote.booked_tokens)

    def set_own(self, worker: WorkerId, num_in_flight: int, booked_tokens: int) -> None:
        """Replace this process's bookings at a worker, for a row that is counted elsewhere."""
        if self._words[0] != self._columns.generation:
            self._renew()
        if worker not in self._at:
            self._claim(worker)
        own = self._own[worker]
        own.num_in_flight, own.booked_tokens = num_in_flight, booked_tokens
        self._words[own.requests_at], self._words[own.tokens_at] = num_in_flight, booked_tokens

    def forget_idle(self) -> None:
        """Forget workers with nothing in flight here; the next booking adds them again."""
        for worker in [worker for worker, own in self._own.items() if not own.num_in_flight]:
            del self._own[worker]
            self._at.pop(worker, None)

    def _claim(self, worker: WorkerId) -> int:
        """Return where the worker's cells begin; -1 where no column is left, and this process counts for
        itself."""
        column = self._columns.of(worker)
        at = self._at[worker] = -1 if column is None else self._table.cells_at(column)
        own = self._own.setdefault(worker, _Own(0, 0))
        if at < 0:
            own.requests_at = own.tokens_at = self._table.nowhere
        else:
            own.requests_at, own.tokens_at = at + self._row, at + self._num_rows + self._row
            self._words[own.requests_at], self._words[own.tokens_at] = own.num_in_flight, own.booked_tokens
        return at

    def _renew(self) -> None:
        """Claim columns again after they were reassigned, for workers with load here."""
        self._columns.renew()
        for at in self._at.values():
            if at >= 0:
                self._words[at + self._row] = self._words[at + self._num_rows + self._row] = 0
        self._at = {}
        self._own = {worker: own for worker, own in self._own.items() if own.num_in_flight}
        for worker in self._own:
            self._claim(worker)
