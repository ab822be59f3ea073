"""Bookings of other hosts' gateways, as the last row of this host's table (`shared_ledger.py`).

    message ─► the latest of each gateway ─► summed by worker ─► cells of the row
                                     promises ────────────────► its promises, with their durations

Decisions see them as one more process of the host: nothing on the data path knows of them. One process of a
host keeps the row. Bookings of a gateway that has been silent for `keep_s` are dropped; its promises for
requests in flight end by themselves by then.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from gateway.bookings.message import KEEP_S, BookingsMessage, Promise, WorkerBookings
from gateway.bookings.promises import Promises
from gateway.bookings.shared_ledger import Columns, SharedLedger, Table
from gateway.core.worker import WorkerId

MAX_GATEWAYS = 1024
MAX_WORKERS = 2048
"""Workers named by other hosts: half of the columns, so that this host's own workers find one."""
STEP_BLOCKS = 1024
"""Promised blocks noted at once, in half a millisecond."""
FORGET_S = 60.0
"""Time between two clean-ups of workers without bookings: a column for a new name costs some 0.1 ms, and a
foreign client may send any number of names."""


@dataclass(slots=True, eq=False)
class _Gateway:
    seq: int
    echo_at: float
    booked: dict[WorkerId, WorkerBookings] = field(default_factory=dict)


class RemoteHosts:
    """Applies other hosts' messages to their row of the table. `now` is the host's shared monotonic clock, in
    seconds."""

    def __init__(self, table: Table, row: int, host: int, *, keep_s: float = KEEP_S) -> None:
        self._table = table
        self._row = row
        self._host = host
        self._keep_s = keep_s
        self._ledger = SharedLedger(table, row)
        self._promises = Promises(table, row)
        self._columns = Columns(table)
        self._gateways: dict[int, _Gateway] = {}
        self._named: set[WorkerId] = set()
        self._forgot_at = 0.0
        self.num_dropped = self.num_ignored = 0

    def __repr__(self) -> str:
        return f"Abroad(gateways={len(self._gateways)}, {self._ledger})"

    @property
    def num_gateways(self) -> int:
        return len(self._gateways)

    def age_s(self, now: float) -> float:
        """Return the time since the last message of the most silent gateway; 0 without gateways."""
        return max((now - gateway.echo_at for gateway in self._gateways.values()), default=0.0)

    def begin(self) -> None:
        """Take the row over, discarding its content."""
        self._table.release(self._row)
        self._ledger = SharedLedger(self._table, self._row)
        self._gateways, self._named = {}, set()
        self._table.set_num_others(0)

    def receive(self, message: BookingsMessage, now: float) -> None:
        for _ in self.receive_in_steps(message, now):
            pass

    def receive_in_steps(self, message: BookingsMessage, now: float) -> Generator[None, None, None]:
        """Apply a message, a worker or STEP_BLOCKS promised blocks in each step."""
        if message.host == self._host:
            self._table.confirm_own(message.gateway, message.seq)
        elif (known := self._hear(message, now)) is not None:
            yield from self._note(known, message, now)
        if message.lock_number:
            self._table.set_lock_number(message.lock_number)

    def expire(self, now: float) -> None:
        """Drop the bookings of silent gateways."""
        for number, gateway in list(self._gateways.items()):
            if now - gateway.echo_at > self._keep_s:
                self.num_dropped += 1
                self._drop(number)
        if len(self._named) >= MAX_WORKERS and now - self._forgot_at > FORGET_S:
            self._forgot_at = now
            self._named = {worker for worker in self._named if self._ledger.own_at(worker).num_in_flight}
            self._ledger.forget_idle()

    def forget(self, worker: WorkerId) -> None:
        """Drop promises at a worker after its engine restarted."""
        self._renew()
        column = self._columns.of(worker)
        if column is not None:
            self._promises.drop_column(column)

    def _hear(self, message: BookingsMessage, now: float) -> _Gateway | None:
        """Return the sender of a message, None where there is nothing to note."""
        known = self._gateways.get(message.gateway)
        if known is None:
            if len(self._gateways) >= MAX_GATEWAYS:
                self.num_ignored += 1
                return None
            known = self._gateways[message.gateway] = _Gateway(message.seq, now)
            self._table.set_num_others(len(self._gateways))
        elif message.seq <= known.seq:
            return None  # from an earlier connection
        known.seq, known.echo_at = message.seq, now
        if message.is_last:
            self._drop(message.gateway)
            return None
        return known

    def _note(self, known: _Gateway, message: BookingsMessage, now: float) -> Iterator[None]:
        """Note bookings and promises in steps, unless the sender is dropped meanwhile."""
        booked: Iterable[WorkerBookings] = message.booked
        if message.is_whole:
            there = {each.worker for each in message.booked}
            ended = [worker for worker in known.booked if worker not in there]
            booked = chain((WorkerBookings(worker, 0, 0) for worker in ended), message.booked)
        for each in booked:
            if self._gateways.get(message.gateway) is not known:
                return
            self._set(known, each)
            yield
        for promise in message.promises:
            for first in range(0, max(len(promise.blocks), 1), STEP_BLOCKS):
                self._renew()
                some = promise.blocks[first : first + STEP_BLOCKS]
                self._promise(Promise(promise.worker, some, promise.keep_ms), int(now * 1000))
                yield

    def _set(self, gateway: _Gateway, booked: WorkerBookings) -> None:
        worker = booked.id
        if not self._is_named(worker):
            return
        before, sums = gateway.booked.pop(worker, None), self._ledger.own_at(worker)
        if booked.num_in_flight:
            gateway.booked[worker] = booked
        elif before is None:
            return
        self._ledger.set_own(
            worker,
            sums.num_in_flight + booked.num_in_flight - (before.num_in_flight if before else 0),
            sums.booked_tokens + _tokens(booked) - (_tokens(before) if before else 0),
        )

    def _drop(self, number: int) -> None:
        gateway = self._gateways.pop(number)
        self._table.set_num_others(len(self._gateways))
        for worker in list(gateway.booked):
            self._set(gateway, WorkerBookings(worker, 0, 0))

    def _promise(self, promise: Promise, now_ms: int) -> None:
        worker = WorkerId(promise.worker)
        column = self._columns.of(worker) if self._is_named(worker) else None
        if column is None:
            return
        for block in promise.blocks:
            if promise.keep_ms:
                self._promises.put(block, column, now_ms + promise.keep_ms)
            else:
                self._promises.withdraw(block, column)

    def _is_named(self, worker: WorkerId) -> bool:
        """Return True if the worker has an entry here, or gets one."""
        if worker not in self._named:
            if len(self._named) >= MAX_WORKERS:
                self.num_ignored += 1
                return False
            self._named.add(worker)
        return True

    def _renew(self) -> None:
        """Drop promises after columns were reassigned: they may be another worker's now."""
        if self._table.generation != self._columns.generation:
            self._columns.renew()
            self._promises.clear()


def _tokens(booked: WorkerBookings) -> int:
    """Return booked tokens, ignoring those of a gateway with nothing in flight."""
    return booked.booked_tokens if booked.num_in_flight else 0
