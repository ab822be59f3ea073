"""Others' bookings as a row of the table: always the sum of the latest of each gateway."""

import random
from contextlib import nullcontext
from typing import Any

import pytest

from gateway.bookings.message import Booked, BookingsMessage, Promise
from gateway.bookings.remote_hosts import MAX_GATEWAYS, MAX_WORKERS, RemoteHosts
from gateway.bookings.shared_assumed import SharedAssumedIndex
from gateway.bookings.shared_ledger import SharedLedger, Table
from gateway.core.blocks import BlockHash
from gateway.core.ledger import Ledger
from gateway.core.worker import WorkerId
from tests.bookings.test_shared_ledger import table
from tests.core.ledgers import A, B, loads

HERE, THERE = 1, 2
RUN = [BlockHash(1000 + i) for i in range(40)]


class Host:
    """A process alone, and all others."""

    def __init__(self, shared: Table | None = None) -> None:
        self.table = shared or table(2)
        self.ledger = SharedLedger(self.table, 0, far_row=1)
        self.remote = RemoteHosts(self.table, 1, HERE)
        self.seq = 0

    def is_subscriber(
        self,
        *booked: tuple[WorkerId, int, int],
        gateway: int = 7,
        now: float = 0,
        host: int = THERE,
        **more: Any,
    ) -> None:
        self.seq += 1
        told = BookingsMessage(
            host, gateway, more.pop("seq", self.seq), [Booked(*each) for each in booked], **more
        )
        self.remote.receive(told, now)

    def loads(self, *workers: WorkerId) -> list[tuple[int, int]]:
        return [loads(self.ledger, worker) for worker in workers or (A, B)]


def test_what_others_have_in_flight_is_load_here() -> None:
    host = Host()
    own = host.ledger.book(A, 100, 100)
    host.is_subscriber((A, 2, 500), (B, 1, 7))
    host.is_subscriber((A, 1, 30), gateway=8)
    assert host.loads() == [(4, 630), (1, 7)]
    assert host.ledger.remote(A).booked_tokens == 530
    assert (host.ledger.here(A).num_in_flight, host.ledger.here(B).num_in_flight) == (1, 0)
    host.ledger.release(own)
    assert host.loads() == [(3, 530), (1, 7)]


def test_what_is_told_again_takes_the_place_of_what_was_told() -> None:
    host = Host()
    host.is_subscriber((A, 2, 500), (B, 1, 7))
    host.is_subscriber((A, 1, 0))
    assert host.loads() == [(1, 0), (1, 7)]
    host.is_subscriber((A, 0, 0))
    assert host.loads() == [(0, 0), (1, 7)]


def test_of_a_whole_what_is_not_in_it_is_nothing() -> None:
    host = Host()
    host.is_subscriber((A, 2, 500), (B, 1, 7))
    host.is_subscriber((B, 2, 9), is_whole=True)
    assert host.loads() == [(0, 0), (2, 9)]


def test_one_who_says_that_it_ends_or_is_not_heard_of_has_nothing_booked() -> None:
    host = Host()
    for gateway in (7, 8, 9):
        host.is_subscriber((A, 1, 10), gateway=gateway)
    host.is_subscriber(gateway=7, now=1, is_last=True)
    assert host.loads(A) == [(2, 20)]
    host.is_subscriber(gateway=8, now=3)
    host.remote.expire(3.6)
    assert (host.loads(A), host.remote.num_gateways, host.remote.num_dropped) == ([(1, 10)], 1, 1)
    assert host.remote.age_s(3.6) == pytest.approx(0.6)
    host.remote.expire(7)
    assert (host.loads(A), host.remote.age_s(7)) == ([(0, 0)], 0)


def test_one_who_was_dropped_and_is_heard_of_again_counts_again() -> None:
    host = Host()
    host.is_subscriber((A, 1, 10))
    host.remote.expire(10)
    host.is_subscriber((A, 1, 10), now=10, is_whole=True)
    assert host.loads(A) == [(1, 10)]


def test_what_comes_late_from_a_line_that_was_left_is_not_heard() -> None:
    host = Host()
    host.is_subscriber((A, 1, 10), seq=5)
    host.is_subscriber((A, 9, 90), seq=4)
    assert host.loads(A) == [(1, 10)]


def test_of_its_own_processes_a_host_hears_the_turn_alone() -> None:
    host = Host()
    host.is_subscriber((A, 1, 10), host=HERE, lock_number=4)
    assert (host.loads(A), host.table.lock_number, host.remote.num_gateways) == ([(0, 0)], 4, 0)
    host.is_subscriber((A, 1, 10), lock_number=1)  # Redis was emptied, and counts anew
    assert host.table.lock_number == 1


def test_tokens_without_requests_are_nothing() -> None:
    host = Host()
    host.is_subscriber((A, 0, 10))
    assert host.loads(A) == [(0, 0)]
    host.is_subscriber((A, 1, 10))
    host.is_subscriber((A, 0, 10))
    assert host.loads(A) == [(0, 0)]


def test_the_next_process_that_hears_begins_with_nothing() -> None:
    host = Host()
    host.is_subscriber((A, 1, 10))
    host.remote.begin()
    assert host.loads(A) == [(0, 0)]
    host.is_subscriber((A, 1, 10))
    assert host.loads(A) == [(1, 10)]


def promises(*workers: WorkerId, keep_ms: int = 3500) -> dict[str, Any]:
    return {"promises": [Promise(worker, [RUN[31], RUN[39]], keep_ms) for worker in workers]}


def overlap(index: SharedAssumedIndex, now: float) -> dict[WorkerId, int]:
    held: dict[WorkerId, int] = {}
    index.extend(RUN, held, now)
    return held


def knowing(host: Host) -> SharedAssumedIndex:
    index = SharedAssumedIndex(host.table, 0)
    for worker in (A, B):
        index.add_worker(worker, keep_s=1, max_blocks=100)
    return index


def test_what_others_promise_is_held_for_so_long() -> None:
    host = Host()
    index = knowing(host)
    host.is_subscriber(now=100, **promises(A))
    assert (overlap(index, 103.4), overlap(index, 103.5)) == ({A: 40}, {})
    host.is_subscriber(now=103, **promises(A))
    assert overlap(index, 106.4) == {A: 40}


def test_what_is_taken_back_is_not_held() -> None:
    host = Host()
    index = knowing(host)
    host.is_subscriber(**promises(A, B))
    host.is_subscriber(**promises(A, keep_ms=0))
    assert overlap(index, 1) == {B: 40}
    host.is_subscriber(**promises(A, B))
    host.remote.forget(B)
    assert overlap(index, 1) == {A: 40}


def test_columns_that_are_given_anew_take_no_load_or_promise_along() -> None:
    host = Host(table(num_rows=2, max_columns=2))
    host.is_subscriber((A, 1, 10), **promises(A, B))
    for number in range(5):
        host.table.column(WorkerId(f"passing{number}"))
    assert host.table.generation > 0
    host.is_subscriber((A, 2, 20), **promises(A))
    assert host.loads(A) == [(2, 20)]
    assert overlap(knowing(host), 1) == {A: 40}
    host.is_subscriber((A, 0, 0))
    assert host.loads(A) == [(0, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_the_load_is_what_all_ledgers_have_whatever_is_lost(seed: int) -> None:
    """Messages are lost at random; after each gateway's next whole all is right again."""
    rng = random.Random(seed)
    host = Host(table(num_rows=2, max_columns=6))
    workers = [WorkerId(f"w{number}") for number in range(4)]
    others = [Ledger() for _ in range(3)]
    open_bookings: list[tuple[int, Any]] = []

    def tell(gateway: int, workers: list[WorkerId], **more: Any) -> None:
        told = [(worker, *loads(others[gateway], worker)) for worker in workers]
        host.is_subscriber(
            *[each for each in told if each[1] or "is_whole" not in more], gateway=gateway, **more
        )

    for _ in range(400):
        if rng.random() < 0.1:
            host.table.column(WorkerId(f"passing{rng.random()}"))
        if rng.random() < 0.5 or not open_bookings:
            gateway, worker = rng.randrange(3), rng.choice(workers)
            open_bookings.append((gateway, others[gateway].book(worker, rng.randrange(100), 100)))
        else:
            gateway, booking = open_bookings.pop(rng.randrange(len(open_bookings)))
            worker = booking.worker
            others[gateway].release(booking)
        if rng.random() < 0.8:
            tell(gateway, [worker])
        for worker in workers:
            host.ledger.load(worker)
    for gateway in range(3):
        tell(gateway, workers, is_whole=True)
    for worker in workers:
        expected = [loads(ledger, worker) for ledger in others]
        assert loads(host.ledger, worker) == (sum(n for n, _ in expected), sum(t for _, t in expected))


def test_names_beyond_what_a_host_can_tell_apart_are_ignored() -> None:
    """Whoever may write to Redis may name any number of workers and gateways."""
    host = Host(Table(memoryview(bytearray(Table.num_bytes(2))), 2, nullcontext))
    host.is_subscriber((A, 2, 500))
    for number in range(MAX_WORKERS + 10):
        name = WorkerId(f"w{number}")
        promise = Promise(name, [RUN[0]], 1000)
        host.is_subscriber((name, 1, 1), gateway=8, promises=[promise])
    assert host.remote.num_ignored == 2 * 11
    assert host.loads(A, WorkerId("w0"), WorkerId(f"w{MAX_WORKERS}")) == [(2, 500), (1, 1), (0, 0)]
    host.remote.expire(1000.0)  # all are silent, and forgotten
    assert host.loads(A, WorkerId("w0")) == [(0, 0), (0, 0)]
    host.is_subscriber((WorkerId("new"), 3, 3), now=1000.0)
    assert host.loads(WorkerId("new")) == [(3, 3)]
    assert len(host.remote._ledger._own) == 1


def test_gateways_beyond_any_fleet_are_ignored() -> None:
    host = Host()
    for gateway in range(1, MAX_GATEWAYS + 3):
        host.is_subscriber((A, 1, 0), gateway=gateway)
    assert host.remote.num_gateways == MAX_GATEWAYS
    assert host.loads(A) == [(MAX_GATEWAYS, 0)] and host.remote.num_ignored == 2
