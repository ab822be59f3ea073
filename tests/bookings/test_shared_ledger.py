import contextlib
import random
from collections.abc import Iterator

import pytest

from gateway.bookings.shared_ledger import LOCK_TOKENS, Columns, SharedLedger, name_of
from gateway.core.ledger import Ledger, Load
from gateway.core.worker import WorkerId
from tests.support.shared_tables import shared_table
from tests.support.worlds.ledgers import A, B, LedgerContract, loads


class TestAlone(LedgerContract):
    def make(self) -> Ledger:
        return SharedLedger(shared_table(1), 0)


class TestWithIdleNeighbours(LedgerContract):
    def make(self) -> Ledger:
        shared = shared_table()
        SharedLedger(shared, 2).book(WorkerId("other"), 10, 10)
        return SharedLedger(shared, 1)


def test_each_process_sees_the_load_of_all() -> None:
    shared = shared_table()
    one, two, three = (SharedLedger(shared, row) for row in range(3))
    two.load(B)  # the processes meet the workers in different order
    first = one.book(A, 100, 100)
    second = two.book(A, 30, 30)
    three.book(B, 7, 7)
    for ledger in (one, two, three):
        assert (loads(ledger, A), loads(ledger, B)) == ((2, 130), (1, 7))
    one.first_token(first)
    assert loads(three, A) == (2, 30)
    two.release(second)
    assert loads(one, A) == (1, 0)
    assert repr(shared) == "Table(rows=3, columns=2 of 4)"


def test_a_long_prompt_is_decided_under_the_host_lock_and_a_short_one_is_not() -> None:
    calls: list[str] = []

    @contextlib.contextmanager
    def acquire_host_lock() -> Iterator[None]:
        calls.append("taken")
        yield
        calls.append("given back")

    ledger = SharedLedger(shared_table(), 0, acquire_host_lock)
    with ledger.lock(LOCK_TOKENS - 1):
        assert calls == []
    with ledger.lock(LOCK_TOKENS):
        assert calls == ["taken"]
    assert calls == ["taken", "given back"]


def test_each_change_is_reported() -> None:
    changed: list[WorkerId] = []
    ledger = SharedLedger(shared_table(), 0)
    ledger.on_change = changed.append
    booking = ledger.book(A, 5, 5)
    assert (changed, ledger.own()) == ([A], {A: Load(1, 5)})
    ledger.first_token(booking)
    ledger.first_token(booking)
    assert (changed, ledger.own_at(A)) == ([A, A], Load(1, 0))
    ledger.release(booking)
    ledger.release(booking)
    assert (changed, ledger.own(), ledger.own_at(B)) == ([A, A, A], {}, Load())


def test_without_a_remote_row_load_here_is_all_load() -> None:
    shared = shared_table()
    first, second = SharedLedger(shared, 0), SharedLedger(shared, 1)
    first.book(A, 5, 5)
    second.book(A, 7, 7)
    assert (first.here(A), first.remote(A)) == (Load(2, 12), Load())
    assert Ledger().here(A) == Load()


def test_a_host_has_one_number() -> None:
    shared = shared_table()
    assert [shared.host(5), shared.host(6)] == [5, 5]


def test_the_row_of_a_dead_process_is_released_and_no_other() -> None:
    shared = shared_table()
    dead, alive = SharedLedger(shared, 0), SharedLedger(shared, 1)
    for ledger in (dead, alive):
        ledger.book(A, 100, 100)
        ledger.book(B, 5, 5)
        shared.closed(0)
    shared.closed(1)
    shared.release(0)
    assert (loads(alive, A), loads(alive, B)) == ((1, 100), (1, 5))
    assert (shared.num_closed(0), shared.num_closed(1)) == (0, 1)
    replacement = SharedLedger(shared, 0)
    replacement.book(A, 1, 1)
    assert loads(alive, A) == (2, 101)


def test_columns_of_workers_without_load_are_reused() -> None:
    shared = shared_table(num_rows=2, max_columns=3)
    first, second = SharedLedger(shared, 0), SharedLedger(shared, 1)
    staying = first.book(A, 10, 10)
    second.release(second.book(B, 1, 1))
    first.load(B)
    for number in range(20):  # pods come and go
        worker = WorkerId(f"pod{number}")
        booking = second.book(worker, 3, 3)
        assert loads(first, worker) == (1, 3)
        second.release(booking)
    assert (loads(first, A), loads(second, A)) == ((1, 10), (1, 10))
    first.release(staying)
    assert loads(second, A) == (0, 0)
    assert shared.generation > 0


def test_without_a_free_column_a_process_counts_for_itself() -> None:
    shared = shared_table(num_rows=2, max_columns=2)
    first, second = SharedLedger(shared, 0), SharedLedger(shared, 1)
    bookings = [first.book(WorkerId(f"w{number}"), 5, 5) for number in range(3)]
    assert [loads(first, WorkerId(f"w{number}")) for number in range(3)] == [(1, 5)] * 3
    assert loads(second, WorkerId("w2")) == (0, 0)
    assert all(first.release(booking) for booking in bookings)


def test_a_worker_is_found_by_its_column() -> None:
    columns = Columns(shared_table())
    column = columns.of(A)
    assert column is not None
    assert (columns.worker(column), columns.worker(column + 1)) == (A, None)
    assert name_of(A) != name_of(B)


@pytest.mark.parametrize("seed", range(5))
def test_the_loads_are_the_sum_of_what_each_ledger_counts(seed: int) -> None:
    """Compared with separate ledgers, in any order of events; columns are scarce on purpose."""
    rng = random.Random(seed)
    shared = shared_table(num_rows=3, max_columns=6)
    ledgers, alone = [SharedLedger(shared, row) for row in range(3)], [Ledger() for _ in range(3)]
    workers = [WorkerId(f"w{number}") for number in range(5)]
    open_bookings = []
    for _ in range(400):
        row, worker = rng.randrange(3), rng.choice(workers)
        if rng.random() < 0.1:
            shared.column(WorkerId(f"passing{rng.random()}"))
        if rng.random() < 0.5 or not open_bookings:
            tokens = rng.randrange(100)
            pair = ledgers[row].book(worker, tokens, tokens), alone[row].book(worker, tokens, tokens)
            open_bookings.append((row, pair))
        else:
            row, pair = open_bookings.pop(rng.randrange(len(open_bookings)))
            end = rng.choice(["first_token", "release"])
            for ledger, booking in zip((ledgers[row], alone[row]), pair, strict=True):
                getattr(ledger, end)(booking)
            if end == "first_token":
                open_bookings.append((row, pair))
        for ledger in ledgers:  # each process reads a worker's load, as every decision does
            ledger.load(worker)
    for worker in workers:
        expected = [loads(ledger, worker) for ledger in alone]
        assert loads(ledgers[0], worker) == (sum(n for n, _ in expected), sum(t for _, t in expected))
