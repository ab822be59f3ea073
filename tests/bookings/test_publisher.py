from collections.abc import Callable

from gateway.bookings.message import Booked, BookingsMessage, Promise, decode
from gateway.bookings.publisher import EVERY_S, Publisher
from gateway.bookings.shared_assumed import IN_FLIGHT
from gateway.bookings.shared_memory import ProcessView
from gateway.core.blocks import BlockHash
from tests.bookings.test_shared_ledger import table
from tests.core.ledgers import A, B

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

    def go_on(self, until: float) -> None:
        due = [each for each in self.due if each[0] <= until]
        self.due = [each for each in self.due if each[0] > until]
        self.now = until
        for _, callback in due:
            callback()


class Speaking:
    def __init__(self) -> None:
        self.loop, self.said = Loop(), list[BookingsMessage]()
        self.place = ProcessView(table(2, max_columns=8), 0, 1)
        for worker in (A, B):
            self.place.assumed.add_worker(worker, keep_s=10, max_blocks=100)
        self.publisher = Publisher(
            self.place.ledger,
            self.place.assumed,
            host=1,
            gateway=7,
            send=lambda data: self.said.append(told(data)),
            loop=self.loop,
        )


def told(data: bytes) -> BookingsMessage:
    message = decode(data)
    assert message
    return message


def test_what_changes_in_one_turn_of_the_loop_is_one_message() -> None:
    speaking = Speaking()
    ledger = speaking.place.ledger
    first = ledger.book(A, 100, 100)
    ledger.book(A, 30, 30)
    ledger.book(B, 7, 7)
    ledger.first_token(first)
    assert speaking.said == []
    speaking.loop.go_on(100.0)
    (message,) = speaking.said
    assert (message.host, message.gateway, message.is_whole) == (1, 7, False)
    assert sorted(message.booked, key=lambda b: b.worker) == [Booked(A, 2, 30), Booked(B, 1, 7)]


def test_between_two_messages_is_a_millisecond() -> None:
    speaking = Speaking()
    ledger = speaking.place.ledger
    booking = ledger.book(A, 100, 100)
    speaking.loop.go_on(100.0)
    ledger.first_token(booking)
    speaking.loop.go_on(100.0 + EVERY_S / 2)
    ledger.release(booking)
    assert len(speaking.said) == 1
    speaking.loop.go_on(100.0 + EVERY_S)
    assert [message.booked for message in speaking.said] == [[Booked(A, 1, 100)], [Booked(A, 0, 0)]]
    assert speaking.said[0].seq < speaking.said[1].seq
    assert speaking.loop.due == []


def test_promises_hold_for_as_long_as_they_are_told() -> None:
    speaking = Speaking()
    for keep_ms in (IN_FLIGHT, 1000, 10**12):
        speaking.publisher.promised(A, RUN, keep_ms)
        speaking.loop.go_on(speaking.loop.now + EVERY_S)
    told = [message.promises for message in speaking.said]
    assert told == [[Promise(A, RUN, keep_ms)] for keep_ms in (3500, 1000, 86_400_000)]


def test_a_promise_and_its_booking_are_said_at_once_where_nothing_was_said_lately() -> None:
    speaking = Speaking()
    for _ in range(3):
        speaking.place.ledger.book(A, 100, 100)
        speaking.publisher.promised(A, RUN, IN_FLIGHT)
    assert [(m.booked, len(m.promises)) for m in speaking.said] == [([Booked(A, 1, 100)], 1)]
    speaking.loop.go_on(speaking.loop.now + EVERY_S)
    assert [(m.booked, len(m.promises)) for m in speaking.said[1:]] == [([Booked(A, 3, 300)], 2)]


def test_what_went_with_another_message_is_not_said_again() -> None:
    speaking = Speaking()
    speaking.place.ledger.book(A, 100, 100)
    assert told(speaking.publisher.news(lock_number=5)).lock_number == 5
    speaking.loop.go_on(100.0)
    assert speaking.said == []


def test_the_whole_is_all_that_is_in_flight() -> None:
    speaking = Speaking()
    place, publisher = speaking.place, speaking.publisher
    place.assumed.extend(RUN, {}, 1.0)
    for worker in (A, B):
        run = list(RUN)
        place.assumed.pin(worker, run)
        booking = place.ledger.book(worker, 50, 160)
    place.assumed.unpin(B, run, 1.0, was_run=True)
    place.ledger.release(booking)
    message = told(publisher.whole(asks=True))
    assert (message.is_whole, message.asks, message.booked) == (True, True, [Booked(A, 1, 50)])
    assert message.promises == [Promise(B, [RUN[9]], 10_000), Promise(A, [RUN[9]], 3500)]
    assert told(publisher.whole()).promises == [Promise(A, [RUN[9]], 3500)]
    assert told(publisher.last()).is_last
