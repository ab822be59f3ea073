"""Bookings that others cannot have heard: counted for them too until they can."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.bookings.message import Booked, Told
from gateway.bookings.remote_hosts import Abroad
from gateway.bookings.shared_ledger import SharedLedger
from gateway.bookings.unconfirmed import LOST_S, Unheard
from gateway.core.decision import Candidate, Query
from gateway.core.worker import Worker, WorkerId
from gateway.policies.prefix_overlap import PrefixOverlap
from tests.bookings.test_shared_ledger import table
from tests.core.ledgers import A, B, loads

HERE, THERE = 1, 2
PROMPT = 1500
QUERY = Query("m", PROMPT)


def test_what_is_booked_is_unheard_until_its_message_has_come_back() -> None:
    unheard = Unheard()
    unheard.booked(A)
    unheard.booked(A)
    unheard.told(7, 0.0)
    unheard.booked(A)
    unheard.booked(B)
    unheard.told(8, 0.0)
    assert (unheard.at(A), unheard.at(B)) == (3, 1)
    unheard.heard(6)
    assert unheard.at(A) == 3
    unheard.heard(7)
    assert (unheard.at(A), unheard.at(B)) == (1, 1)
    unheard.heard(9)
    assert (unheard.at(A), unheard.at(B)) == (0, 0)
    assert repr(unheard) == "Unheard({}, messages=0)"


def test_a_message_that_does_not_come_back_is_lost() -> None:
    unheard = Unheard()
    unheard.booked(A)
    unheard.told(1, 0.0)
    unheard.booked(B)
    unheard.told(2, LOST_S)
    assert (unheard.at(A), unheard.at(B)) == (1, 1)
    unheard.told(3, LOST_S * 1.5)
    assert (unheard.at(A), unheard.at(B)) == (0, 1)


@given(st.lists(st.tuples(st.sampled_from("btTh"), st.sampled_from([A, B]), st.floats(0, 0.1))))
def test_nothing_is_counted_twice_or_for_ever(steps: list[tuple[str, WorkerId, float]]) -> None:
    unheard, now, seq = Unheard(), 0.0, 0
    booked: list[tuple[int, float, WorkerId]] = []  # message, when it was told
    new: list[WorkerId] = []
    for what, worker, seconds in steps:
        now += seconds
        if what == "b":
            unheard.booked(worker)
            new.append(worker)
        elif what == "h":
            heard = random.Random(seq).randint(0, seq)
            unheard.heard(heard)
            booked = [each for each in booked if each[0] > heard]
        else:
            seq += 1
            unheard.told(seq, now)
            booked = [each for each in booked if each[1] >= now - LOST_S]
            booked += [(seq, now, each) for each in new]
            new = []
        counts = Counter(each[2] for each in booked) + Counter(new)
        assert (unheard.at(A), unheard.at(B)) == (counts[A], counts[B])


def told_by(host: int, gateway: int, seq: int, *booked: Booked) -> Told:
    return Told(host, gateway, seq, list(booked))


def test_each_of_the_others_is_taken_to_do_as_we_do_until_it_is_heard() -> None:
    shared = table(2)
    ledger, abroad = SharedLedger(shared, 0, far_row=1), Abroad(shared, 1, HERE)
    ledger.unheard = Unheard()
    shared.tells_as(0, 99)
    ledger.book(A, 100, 100)
    assert loads(ledger, A) == (1, 100)  # there is nobody else
    ledger.unheard.told(1, 0.0)
    for gateway in (5, 6):
        abroad.hear(told_by(THERE, gateway, 1), 0.0)
    assert loads(ledger, A) == (3, 100)
    assert (ledger.here(A).num_in_flight, ledger.abroad(A).num_in_flight) == (1, 0)
    abroad.hear(told_by(THERE, 5, 2, Booked(A, 1, 30)), 0.0)
    abroad.hear(told_by(HERE, 99, 1), 0.0)
    assert loads(ledger, A) == (2, 130)
    ledger.book(A, 10, 10)
    assert loads(ledger, A) == (5, 140)
    abroad.expire(100.0)
    assert loads(ledger, A) == (2, 110)


def test_another_process_of_the_host_hears_for_all() -> None:
    shared = table(3)
    ledgers = [SharedLedger(shared, row, far_row=2) for row in range(2)]
    hears = Abroad(shared, 2, HERE)
    for row, ledger in enumerate(ledgers):
        ledger.unheard = Unheard()
        shared.tells_as(row, 100 + row)
        ledger.book(A, 10, 10)
        ledger.unheard.told(4, 0.0)
    hears.hear(told_by(THERE, 5, 1), 0.0)
    assert [loads(ledger, A)[0] for ledger in ledgers] == [3, 3]
    hears.hear(told_by(HERE, 101, 4), 0.0)
    assert [loads(ledger, A)[0] for ledger in ledgers] == [3, 2]
    hears.hear(told_by(HERE, 101, 3), 0.0)  # from a connection that was left
    hears.hear(told_by(HERE, 77, 9), 0.0)  # of a process that is gone
    assert [loads(ledger, A)[0] for ledger in ledgers] == [3, 2]
    shared.release(0)
    assert loads(ledgers[1], A)[0] == 1


def spread(num_gateways: int, *, guesses: bool) -> list[int]:
    """Of 64 equal prompts of which none is heard before the last is sent; one of four workers holds it."""
    rng, workers, sent = random.Random(3), [WorkerId(str(i)) for i in range(4)], Counter[WorkerId]()
    for _ in range(num_gateways):
        shared = table(2)
        ledger, abroad = SharedLedger(shared, 0, far_row=1), Abroad(shared, 1, HERE)
        ledger.unheard = Unheard() if guesses else None
        for gateway in range(1, num_gateways):
            abroad.hear(told_by(THERE, gateway, 1), 0.0)
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


def test_a_burst_that_comes_to_several_at_once_spreads_as_one_would_spread_it() -> None:
    alone = spread(1, guesses=False)
    assert spread(4, guesses=False)[0] == 64
    for num in (2, 4, 8):
        told = spread(num, guesses=True)
        assert sum(abs(one - other) for one, other in zip(alone, told, strict=True)) / 2 <= 6.4, told
