"""Contract of every ledger, alone or one of several."""

from gateway.core.ledger import Ledger, Phase
from gateway.core.worker import WorkerId

A, B = WorkerId("a"), WorkerId("b")


def loads(ledger: Ledger, worker: WorkerId) -> tuple[int, int]:
    load = ledger.load(worker)
    return load.num_in_flight, load.booked_tokens


class LedgerContract:
    def make(self) -> Ledger:
        raise NotImplementedError

    def test_a_booking_counts_until_it_is_released(self) -> None:
        ledger = self.make()
        first, second = ledger.book(A, 100, 120), ledger.book(A, 30, 30)
        ledger.book(B, 7, 7)
        assert (loads(ledger, A), loads(ledger, B)) == ((2, 130), (1, 7))
        assert ledger.release(first)
        assert loads(ledger, A) == (1, 30)
        assert ledger.release(second)
        assert loads(ledger, A) == (0, 0)

    def test_the_first_token_ends_the_prefill_and_keeps_the_request(self) -> None:
        ledger = self.make()
        booking = ledger.book(A, 100, 120)
        ledger.first_token(booking)
        ledger.first_token(booking)
        assert (loads(ledger, A), booking.phase) == ((1, 0), Phase.DECODING)

    def test_a_booking_is_released_exactly_once(self) -> None:
        ledger = self.make()
        booking, other = ledger.book(A, 5, 5), ledger.book(A, 9, 9)
        assert [ledger.release(booking), ledger.release(booking)] == [True, False]
        ledger.first_token(booking)
        assert loads(ledger, A) == (1, 9)
        assert ledger.release(other)
        assert loads(ledger, A) == (0, 0)
        assert "{}" in repr(ledger)

    def test_a_worker_without_bookings_is_idle(self) -> None:
        assert loads(self.make(), WorkerId("unknown")) == (0, 0)

    def test_the_first_prompt_is_computed_before_the_others(self) -> None:
        """At 10 ms a token: what is done of the first one is no longer ahead, and never more than it has."""
        ledger = self.make()
        first = ledger.book(A, 100, 120, 5.0)
        second = ledger.book(A, 50, 50, 5.5)
        ahead = [ledger.load(A).ahead_tokens(at, 0.01) for at in (5.0, 5.7, 6.0, 60.0)]
        assert ahead == [150, 80, 50, 50]
        ledger.first_token(first, 7.0)
        assert [ledger.load(A).ahead_tokens(at, 0.01) for at in (7.0, 7.2, 4.0)] == [50, 30, 50]
        ledger.release(second, 7.2)
        assert ledger.load(A).ahead_tokens(9.0, 0.01) == 0
        ledger.release(first, 9.0)
        assert ledger.load(A).ahead_tokens(9.0, 0.01) == 0

    def test_a_prompt_given_up_in_the_queue_leaves_the_first_one_as_it_is(self) -> None:
        ledger = self.make()
        ledger.book(A, 100, 100, 0.0)
        ledger.release(ledger.book(A, 50, 50, 0.1), 0.5)
        assert ledger.load(A).ahead_tokens(0.6, 0.01) == 40
