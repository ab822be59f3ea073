from collections.abc import Callable

from gateway.bookings.message import BookingsMessage, Promise, WorkerBookings, decode
from gateway.bookings.publisher import EVERY_S, BookingsPublisher
from gateway.bookings.shared_assumed import IN_FLIGHT
from gateway.bookings.shared_memory import ProcessView
from gateway.core.blocks import BlockHash
from tests.support.shared_tables import shared_table
from tests.support.worlds.ledgers import A, B

RUN = [BlockHash(1000 + i) for i in range(10)]


class Loop:
    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.due.append((self.now + delay, callback))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def advance(self, until: float) -> None:
        due = [each for each in self.due if each[0] <= until]
        self.due = [each for each in self.due if each[0] > until]
        self.now = until
        for _, callback in due:
            callback()


class Sender:
    def __init__(self) -> None:
        self.loop, self.sent = Loop(), list[BookingsMessage]()
        self.place = ProcessView(shared_table(2, max_columns=8), 0, 1)
        for worker in (A, B):
            self.place.assumed.add_worker(worker, keep_s=10, max_blocks=100)
        self.publisher = BookingsPublisher(
            self.place.ledger,
            self.place.assumed,
            host=1,
            gateway=7,
            send=lambda data: self.sent.append(message_of(data)),
            loop=self.loop,
        )


def message_of(data: bytes) -> BookingsMessage:
    message = decode(data)
    assert message
    return message


def test_changes_of_one_loop_iteration_are_one_message() -> None:
    sender = Sender()
    ledger = sender.place.ledger
    first = ledger.book(A, 100, 100)
    ledger.book(A, 30, 30)
    ledger.book(B, 7, 7)
    ledger.first_token(first)
    assert sender.sent == []
    sender.loop.advance(100.0)
    (message,) = sender.sent
    assert (message.host, message.gateway, message.is_whole) == (1, 7, False)
    assert sorted(message.booked, key=lambda b: b.worker) == [
        WorkerBookings(A, 2, 30),
        WorkerBookings(B, 1, 7),
    ]


def test_messages_are_at_least_a_millisecond_apart() -> None:
    sender = Sender()
    ledger = sender.place.ledger
    booking = ledger.book(A, 100, 100)
    sender.loop.advance(100.0)
    ledger.first_token(booking)
    sender.loop.advance(100.0 + EVERY_S / 2)
    ledger.release(booking)
    assert len(sender.sent) == 1
    sender.loop.advance(100.0 + EVERY_S)
    assert [message.booked for message in sender.sent] == [
        [WorkerBookings(A, 1, 100)],
        [WorkerBookings(A, 0, 0)],
    ]
    assert sender.sent[0].seq < sender.sent[1].seq
    assert sender.loop.due == []


def test_published_promises_have_their_lifetime_in_bounds() -> None:
    sender = Sender()
    for keep_ms in (IN_FLIGHT, 1000, 10**12):
        sender.publisher.promised(A, RUN, keep_ms)
        sender.loop.advance(sender.loop.now + EVERY_S)
    promises = [message.promises for message in sender.sent]
    assert promises == [[Promise(A, RUN, keep_ms)] for keep_ms in (3500, 1000, 86_400_000)]


def test_the_first_promise_and_booking_after_a_pause_are_sent_at_once() -> None:
    sender = Sender()
    for _ in range(3):
        sender.place.ledger.book(A, 100, 100)
        sender.publisher.promised(A, RUN, IN_FLIGHT)
    assert [(m.booked, len(m.promises)) for m in sender.sent] == [([WorkerBookings(A, 1, 100)], 1)]
    sender.loop.advance(sender.loop.now + EVERY_S)
    assert [(m.booked, len(m.promises)) for m in sender.sent[1:]] == [([WorkerBookings(A, 3, 300)], 2)]


def test_news_sent_with_another_message_are_not_sent_again() -> None:
    sender = Sender()
    sender.place.ledger.book(A, 100, 100)
    assert message_of(sender.publisher.changes(lock_number=5)).lock_number == 5
    sender.loop.advance(100.0)
    assert sender.sent == []


def test_a_whole_message_has_all_bookings_in_flight() -> None:
    sender = Sender()
    place, publisher = sender.place, sender.publisher
    place.assumed.extend(RUN, {}, 1.0)
    for worker in (A, B):
        run = list(RUN)
        place.assumed.pin(worker, run)
        booking = place.ledger.book(worker, 50, 160)
    place.assumed.unpin(B, run, 1.0, was_run=True)
    place.ledger.release(booking)
    message = message_of(publisher.snapshot(asks=True))
    assert (message.is_whole, message.asks, message.booked) == (True, True, [WorkerBookings(A, 1, 50)])
    assert message.promises == [Promise(B, [RUN[9]], 10_000), Promise(A, [RUN[9]], 3500)]
    assert message_of(publisher.snapshot()).promises == [Promise(A, [RUN[9]], 3500)]
    assert message_of(publisher.farewell()).is_last
