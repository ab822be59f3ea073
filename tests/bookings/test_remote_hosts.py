"""Remote bookings as a row of the table: always the sum of the latest of each gateway."""

import random
from contextlib import nullcontext
from typing import Any

import pytest

from gateway.bookings.message import BookingsMessage, Promise, WorkerBookings
from gateway.bookings.remote_hosts import MAX_GATEWAYS, MAX_WORKERS, STEP_BLOCKS, RemoteHosts
from gateway.bookings.shared_assumed import SharedAssumedIndex
from gateway.bookings.shared_ledger import SharedLedger, Table
from gateway.core.blocks import BlockHash
from gateway.core.ledger import Ledger
from gateway.core.worker import WorkerId
from tests.support.shared_tables import shared_table
from tests.support.worlds.ledgers import A, B, loads

HERE, THERE = 1, 2
RUN = [BlockHash(1000 + i) for i in range(40)]


class Host:
    """Process on its own host, and messages of remote gateways."""

    def __init__(self, shared: Table | None = None) -> None:
        self.table = shared or shared_table(2)
        self.ledger = SharedLedger(self.table, 0, far_row=1)
        self.remote = RemoteHosts(self.table, 1, HERE)
        self.seq = 0

    def hear(
        self,
        *booked: tuple[WorkerId, int, int],
        gateway: int = 7,
        now: float = 0,
        host: int = THERE,
        **more: Any,
    ) -> None:
        self.seq += 1
        message = BookingsMessage(
            host, gateway, more.pop("seq", self.seq), [WorkerBookings(*each) for each in booked], **more
        )
        self.remote.receive(message, now)

    def loads(self, *workers: WorkerId) -> list[tuple[int, int]]:
        return [loads(self.ledger, worker) for worker in workers or (A, B)]


def test_bookings_of_remote_gateways_are_load_here() -> None:
    host = Host()
    own = host.ledger.book(A, 100, 100)
    host.hear((A, 2, 500), (B, 1, 7))
    host.hear((A, 1, 30), gateway=8)
    assert host.loads() == [(4, 630), (1, 7)]
    assert host.ledger.remote(A).booked_tokens == 530
    assert (host.ledger.here(A).num_in_flight, host.ledger.here(B).num_in_flight) == (1, 0)
    host.ledger.release(own)
    assert host.loads() == [(3, 530), (1, 7)]


def test_a_later_message_replaces_the_bookings_of_an_earlier_one() -> None:
    host = Host()
    host.hear((A, 2, 500), (B, 1, 7))
    host.hear((A, 1, 0))
    assert host.loads() == [(1, 0), (1, 7)]
    host.hear((A, 0, 0))
    assert host.loads() == [(0, 0), (1, 7)]


def test_a_whole_message_clears_workers_missing_from_it() -> None:
    host = Host()
    host.hear((A, 2, 500), (B, 1, 7))
    host.hear((B, 2, 9), is_whole=True)
    assert host.loads() == [(0, 0), (2, 9)]


def test_a_goodbye_or_a_silence_drops_the_bookings_of_a_gateway() -> None:
    host = Host()
    for gateway in (7, 8, 9):
        host.hear((A, 1, 10), gateway=gateway)
    host.hear(gateway=7, now=1, is_last=True)
    assert host.loads(A) == [(2, 20)]
    host.hear(gateway=8, now=3)
    host.remote.expire(3.6)
    assert (host.loads(A), host.remote.num_gateways, host.remote.num_dropped) == ([(1, 10)], 1, 1)
    assert host.remote.age_s(3.6) == pytest.approx(0.6)
    host.remote.expire(7)
    assert (host.loads(A), host.remote.age_s(7)) == ([(0, 0)], 0)


def test_a_gateway_heard_again_after_a_silence_counts_again() -> None:
    host = Host()
    host.hear((A, 1, 10))
    host.remote.expire(10)
    host.hear((A, 1, 10), now=10, is_whole=True)
    assert host.loads(A) == [(1, 10)]


def test_a_late_message_of_a_closed_connection_is_ignored() -> None:
    host = Host()
    host.hear((A, 1, 10), seq=5)
    host.hear((A, 9, 90), seq=4)
    assert host.loads(A) == [(1, 10)]


def test_messages_of_the_own_host_carry_the_lock_number_only() -> None:
    host = Host()
    host.hear((A, 1, 10), host=HERE, lock_number=4)
    assert (host.loads(A), host.table.lock_number, host.remote.num_gateways) == ([(0, 0)], 4, 0)
    host.hear((A, 1, 10), lock_number=1)  # Redis was emptied and counts from 1 again
    assert host.table.lock_number == 1


def test_tokens_without_requests_are_no_load() -> None:
    host = Host()
    host.hear((A, 0, 10))
    assert host.loads(A) == [(0, 0)]
    host.hear((A, 1, 10))
    host.hear((A, 0, 10))
    assert host.loads(A) == [(0, 0)]


def test_the_next_subscriber_begins_with_no_remote_bookings() -> None:
    host = Host()
    host.hear((A, 1, 10))
    host.remote.begin()
    assert host.loads(A) == [(0, 0)]
    host.hear((A, 1, 10))
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


def test_remote_promises_hold_until_they_expire() -> None:
    host = Host()
    index = knowing(host)
    host.hear(now=100, **promises(A))
    assert (overlap(index, 103.4), overlap(index, 103.5)) == ({A: 40}, {})
    host.hear(now=103, **promises(A))
    assert overlap(index, 106.4) == {A: 40}


def test_a_large_message_is_applied_in_steps() -> None:
    host = Host()
    blocks = [BlockHash(i) for i in range(3 * STEP_BLOCKS + 1)]
    booked = [WorkerBookings(worker, 1, 10) for worker in (A, B)]
    message = BookingsMessage(THERE, 7, 1, booked, [Promise(A, blocks, 1000), Promise(B, [], 1000)])
    puts = [0] + [host.remote._promises.num_puts for _ in host.remote.receive_in_steps(message, 0)]
    assert puts == [0, 0, 0, STEP_BLOCKS, 2 * STEP_BLOCKS, 3 * STEP_BLOCKS, len(blocks), len(blocks)]
    assert host.loads() == [(1, 10), (1, 10)]


def test_a_gateway_dropped_during_its_message_has_no_bookings() -> None:
    host = Host()
    steps = host.remote.receive_in_steps(
        BookingsMessage(THERE, 7, 1, [WorkerBookings(worker, 1, 10) for worker in (A, B)]), 0
    )
    next(steps)
    host.remote.expire(100)
    assert list(steps) == []
    assert host.loads() == [(0, 0), (0, 0)]


def test_withdrawn_promises_hold_no_longer() -> None:
    host = Host()
    index = knowing(host)
    host.hear(**promises(A, B))
    host.hear(**promises(A, keep_ms=0))
    assert overlap(index, 1) == {B: 40}
    host.hear(**promises(A, B))
    host.remote.forget(B)
    assert overlap(index, 1) == {A: 40}


def test_a_reused_column_has_no_load_or_promise_of_its_former_worker() -> None:
    host = Host(shared_table(num_rows=2, max_columns=2))
    host.hear((A, 1, 10), **promises(A, B))
    for number in range(5):
        host.table.column(WorkerId(f"passing{number}"))
    assert host.table.generation > 0
    host.hear((A, 2, 20), **promises(A))
    assert host.loads(A) == [(2, 20)]
    assert overlap(knowing(host), 1) == {A: 40}
    host.hear((A, 0, 0))
    assert host.loads(A) == [(0, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_remote_load_equals_all_ledgers_after_lost_messages(seed: int) -> None:
    """Messages are lost at random; after each gateway's next whole message the load is right again."""
    rng = random.Random(seed)
    host = Host(shared_table(num_rows=2, max_columns=6))
    workers = [WorkerId(f"w{number}") for number in range(4)]
    others = [Ledger() for _ in range(3)]
    open_bookings: list[tuple[int, Any]] = []

    def publish(gateway: int, workers: list[WorkerId], **more: Any) -> None:
        bookings = [(worker, *loads(others[gateway], worker)) for worker in workers]
        host.hear(*[each for each in bookings if each[1] or "is_whole" not in more], gateway=gateway, **more)

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
            publish(gateway, [worker])
        for worker in workers:
            host.ledger.load(worker)
    for gateway in range(3):
        publish(gateway, workers, is_whole=True)
    for worker in workers:
        expected = [loads(ledger, worker) for ledger in others]
        assert loads(host.ledger, worker) == (sum(n for n, _ in expected), sum(t for _, t in expected))


def test_workers_and_gateways_beyond_the_bound_are_ignored() -> None:
    """Any client of Redis may name any number of workers and gateways."""
    host = Host(Table(memoryview(bytearray(Table.num_bytes(2))), 2, nullcontext))
    host.hear((A, 2, 500))
    for number in range(MAX_WORKERS + 10):
        name = WorkerId(f"w{number}")
        promise = Promise(name, [RUN[0]], 1000)
        host.hear((name, 1, 1), gateway=8, promises=[promise])
    assert host.remote.num_ignored == 2 * 11
    assert host.loads(A, WorkerId("w0"), WorkerId(f"w{MAX_WORKERS}")) == [(2, 500), (1, 1), (0, 0)]
    host.remote.expire(1000.0)  # all are silent, and forgotten
    assert host.loads(A, WorkerId("w0")) == [(0, 0), (0, 0)]
    host.hear((WorkerId("new"), 3, 3), now=1000.0)
    assert host.loads(WorkerId("new")) == [(3, 3)]
    assert len(host.remote._ledger._own) == 1


def test_gateways_beyond_any_fleet_are_ignored() -> None:
    host = Host()
    for gateway in range(1, MAX_GATEWAYS + 3):
        host.hear((A, 1, 0), gateway=gateway)
    assert host.remote.num_gateways == MAX_GATEWAYS
    assert host.loads(A) == [(MAX_GATEWAYS, 0)] and host.remote.num_ignored == 2
