"""Publisher of this process's bookings: all changes of a moment in one message."""

from collections.abc import Callable
from typing import Protocol

from gateway.bookings.message import KEEP_S, BookingsMessage, Promise, WorkerBookings, encode
from gateway.bookings.shared_assumed import IN_FLIGHT, SharedAssumedIndex
from gateway.bookings.shared_ledger import SharedLedger
from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId

EVERY_S = 0.001
"""Shortest time between two messages with changes; the first goes at once, or at the end of the loop
iteration."""
LONGEST_MS = 86_400_000


class EventLoop(Protocol):
    """Event-loop methods that the publisher needs."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[[], None], /) -> object: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...


class BookingsPublisher:
    """Makes messages of booking changes. `send` is given each message that is due."""

    def __init__(
        self,
        ledger: SharedLedger,
        assumed: SharedAssumedIndex,
        *,
        host: int,
        gateway: int,
        send: Callable[[bytes], None],
        loop: EventLoop,
    ) -> None:
        self.gateway = gateway
        self.num_sent = 0
        self._ledger = ledger
        self._assumed = assumed
        self._host = host
        self._send = send
        self._loop = loop
        self._seq = 0
        self._changed: set[WorkerId] = set()
        self._promises: list[Promise] = []
        self._is_due = False
        self._sent_s = 0.0
        ledger.on_change = self.changed
        assumed.on_promise = self.promised

    def __repr__(self) -> str:
        return f"BookingsPublisher({self.gateway:x}, due={self._is_due})"

    def changed(self, worker: WorkerId) -> None:
        self._changed.add(worker)
        if not self._is_due:
            self._be_due()

    def promised(self, worker: WorkerId, blocks: list[BlockHash], keep_ms: int) -> None:
        keep_ms = round(KEEP_S * 1000) if keep_ms == IN_FLIGHT else min(keep_ms, LONGEST_MS)
        self._promises.append(Promise(worker, blocks, keep_ms))
        if self._loop.time() - self._sent_s >= EVERY_S:  # a loop iteration may be long: others wait to know
            self._send_changes()
        elif not self._is_due:
            self._be_due()

    def changes(self, lock_number: int = 0) -> bytes:
        """Return a message with the changes since the last one."""
        booked = [self._booked(worker) for worker in self._changed]
        promises, self._promises = self._promises, []
        self._changed.clear()
        return self._encode(booked, promises, lock_number=lock_number)

    def snapshot(self, *, asks: bool = False) -> bytes:
        """Return a snapshot message with all that is in flight."""
        self._changed.clear()
        promises, self._promises = self._promises, []
        ended = [promise for promise in promises if promise.keep_ms != round(KEEP_S * 1000)]
        booked = [
            WorkerBookings(w, load.num_in_flight, load.booked_tokens)
            for w, load in self._ledger.own().items()
        ]
        in_flight = [
            Promise(worker, blocks, round(KEEP_S * 1000)) for worker, blocks in self._assumed.in_flight()
        ]
        return self._encode(booked, ended + in_flight, is_whole=True, asks=asks)

    def farewell(self) -> bytes:
        return self._encode([], [], is_last=True)

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self._seq

    def _be_due(self) -> None:
        self._is_due = True
        delay = self._sent_s + EVERY_S - self._loop.time()
        if delay > 0:
            self._loop.call_later(delay, self._on_due)
        else:
            self._loop.call_soon(self._on_due)

    def _on_due(self) -> None:
        self._is_due = False
        if self._changed or self._promises:  # else another message had them
            self._send_changes()

    def _send_changes(self) -> None:
        self._sent_s = self._loop.time()
        self._send(self.changes())

    def _booked(self, worker: WorkerId) -> WorkerBookings:
        load = self._ledger.own_at(worker)
        return WorkerBookings(worker, load.num_in_flight, load.booked_tokens)

    def _encode(
        self,
        booked: list[WorkerBookings],
        promises: list[Promise],
        *,
        lock_number: int = 0,
        is_whole: bool = False,
        is_last: bool = False,
        asks: bool = False,
    ) -> bytes:
        self._seq += 1
        self.num_sent += 1
        if self._ledger.unconfirmed is not None:
            self._ledger.unconfirmed.published(self._seq, self._loop.time())
        return encode(
            BookingsMessage(
                self._host,
                self.gateway,
                self._seq,
                booked,
                promises,
                lock_number=lock_number,
                is_whole=is_whole,
                is_last=is_last,
                asks=asks,
            )
        )
