"""Unconfirmed bookings: counted for remote gateways too until their message has come back."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.bookings.message import BookingsMessage, WorkerBookings
from gateway.bookings.remote_hosts import RemoteHosts
from gateway.bookings.shared_ledger import SharedLedger
from gateway.bookings.unconfirmed import LOST_S, UnconfirmedBookings
from gateway.core.decision import Candidate, Query
from gateway.core.worker import Worker, WorkerId
from gateway.policies.prefix_overlap import PrefixOverlap
from tests.support.shared_tables import shared_table
from tests.support.worlds.ledgers import A, B, loads

HERE, THERE = 1, 2
PROMPT = 1500
QUERY = Query("m", PROMPT)


def test_a_booking_is_unconfirmed_until_its_message_has_come_back() -> None:
    unconfirmed = UnconfirmedBookings()
    unconfirmed.booked(A)
    unconfirmed.booked(A)
    unconfirmed.published(7, 0.0)
    unconfirmed.booked(A)
    unconfirmed.booked(B)
    unconfirmed.published(8, 0.0)
    assert (unconfirmed.at(A), unconfirmed.at(B)) == (3, 1)
    unconfirmed.confirm(6)
    assert unconfirmed.at(A) == 3
    unconfirmed.confirm(7)
    assert (unconfirmed.at(A), unconfirmed.at(B)) == (1, 1)
    unconfirmed.confirm(9)
    assert (unconfirmed.at(A), unconfirmed.at(B)) == (0, 0)
    assert repr(unconfirmed) == "UnconfirmedBookings({}, messages=0)"


def test_a_message_that_does_not_come_back_is_lost() -> None:
    unconfirmed = UnconfirmedBookings()
    unconfirmed.booked(A)
    unconfirmed.published(1, 0.0)
    unconfirmed.booked(B)
    unconfirmed.published(2, LOST_S)
    assert (unconfirmed.at(A), unconfirmed.at(B)) == (1, 1)
    unconfirmed.published(3, LOST_S * 1.5)
    assert (unconfirmed.at(A), unconfirmed.at(B)) == (0, 1)


@given(st.lists(st.tuples(st.sampled_from("btTh"), st.sampled_from([A, B]), st.floats(0, 0.1))))
def test_a_booking_is_counted_once_until_confirmed_or_lost(steps: list[tuple[str, WorkerId, float]]) -> None:
    unconfirmed, now, seq = UnconfirmedBookings(), 0.0, 0
    booked: list[tuple[int, float, WorkerId]] = []  # message, its time, worker
    new: list[WorkerId] = []
    for step, worker, seconds in steps:
        now += seconds
        if step == "b":
            unconfirmed.booked(worker)
            new.append(worker)
        elif step == "h":
            confirm = random.Random(seq).randint(0, seq)
            unconfirmed.confirm(confirm)
            booked = [each for each in booked if each[0] > confirm]
        else:
            seq += 1
            unconfirmed.published(seq, now)
            booked = [each for each in booked if each[1] >= now - LOST_S]
            booked += [(seq, now, each) for each in new]
            new = []
        counts = Counter(each[2] for each in booked) + Counter(new)
        assert (unconfirmed.at(A), unconfirmed.at(B)) == (counts[A], counts[B])


def message_from(host: int, gateway: int, seq: int, *booked: WorkerBookings) -> BookingsMessage:
    return BookingsMessage(host, gateway, seq, list(booked))


def test_each_remote_gateway_is_assumed_to_book_the_same_until_confirmed() -> None:
    shared = shared_table(2)
    ledger, remote = SharedLedger(shared, 0, far_row=1), RemoteHosts(shared, 1, HERE)
    ledger.unconfirmed = UnconfirmedBookings()
    shared.publishes_as(0, 99)
    ledger.book(A, 100, 100)
    assert loads(ledger, A) == (1, 100)  # there is no other gateway
    ledger.unconfirmed.published(1, 0.0)
    for gateway in (5, 6):
        remote.receive(message_from(THERE, gateway, 1), 0.0)
    assert loads(ledger, A) == (3, 100)
    assert (ledger.here(A).num_in_flight, ledger.remote(A).num_in_flight) == (1, 0)
    remote.receive(message_from(THERE, 5, 2, WorkerBookings(A, 1, 30)), 0.0)
    remote.receive(message_from(HERE, 99, 1), 0.0)
    assert loads(ledger, A) == (2, 130)
    ledger.book(A, 10, 10)
    assert loads(ledger, A) == (5, 140)
    remote.expire(100.0)
    assert loads(ledger, A) == (2, 110)


def test_the_subscriber_of_a_host_confirms_for_all_its_processes() -> None:
    shared = shared_table(3)
    ledgers = [SharedLedger(shared, row, far_row=2) for row in range(2)]
    subscriber = RemoteHosts(shared, 2, HERE)
    for row, ledger in enumerate(ledgers):
        ledger.unconfirmed = UnconfirmedBookings()
        shared.publishes_as(row, 100 + row)
        ledger.book(A, 10, 10)
        ledger.unconfirmed.published(4, 0.0)
    subscriber.receive(message_from(THERE, 5, 1), 0.0)
    assert [loads(ledger, A)[0] for ledger in ledgers] == [3, 3]
    subscriber.receive(message_from(HERE, 101, 4), 0.0)
    assert [loads(ledger, A)[0] for ledger in ledgers] == [3, 2]
    subscriber.receive(message_from(HERE, 101, 3), 0.0)  # of a connection that was closed
    subscriber.receive(message_from(HERE, 77, 9), 0.0)  # of a process that has ended
    assert [loads(ledger, A)[0] for ledger in ledgers] == [3, 2]
    shared.release(0)
    assert loads(ledgers[1], A)[0] == 1


def spread(num_gateways: int, *, guesses: bool) -> list[int]:
    """Requests per worker when 64 equal prompts are sent unheard; one of four workers holds the prompt."""
    rng, workers, sent = random.Random(3), [WorkerId(str(i)) for i in range(4)], Counter[WorkerId]()
    for _ in range(num_gateways):
        shared = shared_table(2)
        ledger, remote = SharedLedger(shared, 0, far_row=1), RemoteHosts(shared, 1, HERE)
        ledger.unconfirmed = UnconfirmedBookings() if guesses else None
        for gateway in range(1, num_gateways):
            remote.receive(message_from(THERE, gateway, 1), 0.0)
        held = {workers[0]}
        for _ in range(64 // num_gateways):
            candidates = [candidate(ledger, worker, worker in held) for worker in workers]
            chosen = workers[PrefixOverlap().choose(QUERY, candidates, rng).index]
            ledger.book(chosen, 0 if chosen in held else PROMPT, PROMPT)
            held.add(chosen)
            sent[chosen] += 1
    return sorted(sent.values(), reverse=True)


def candidate(ledger: SharedLedger, worker: WorkerId, holds: bool) -> Candidate:
    load = ledger.load(worker)
    overlap = PROMPT if holds else 0
    there = Worker(worker, f"http://{worker}", ())
    return Candidate(there, overlap, PROMPT - overlap, load.booked_tokens, load.num_in_flight)


def test_a_burst_over_several_gateways_spreads_as_over_one() -> None:
    alone = spread(1, guesses=False)
    assert spread(4, guesses=False)[0] == 64
    for num in (2, 4, 8):
        published = spread(num, guesses=True)
        assert sum(abs(first - second) for first, second in zip(alone, published, strict=True)) / 2 <= 6.4, (
            published
        )
