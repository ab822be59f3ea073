"""Quota usage of tenants: each process writes its own row, and reads how much the others' rows have grown."""

from contextlib import nullcontext

from hypothesis import given
from hypothesis import strategies as st

from gateway.bookings.tenant_usage import REQUESTS, TOKENS, QuotaTable, QuotaUsage

ROWS = 3


def table(max_columns: int = 8) -> QuotaTable:
    memory = memoryview(bytearray(QuotaTable.num_bytes(ROWS, max_columns)))
    return QuotaTable(memory, ROWS, nullcontext, max_columns=max_columns)


def of(table: QuotaTable, tenant: str, row: int) -> QuotaUsage:
    used = table.of(tenant, row)
    assert used is not None
    return used


def test_a_tenant_has_one_column_for_all_processes() -> None:
    shared = table()
    of(shared, "a", 0).set_active(3)
    of(shared, "b", 0).set_active(100)
    of(shared, "a", 1).set_active(4)
    assert of(shared, "a", 2).num_active_elsewhere() == 7
    assert of(shared, "a", 0).num_active_elsewhere() == 4
    assert repr(shared) == "QuotaTable(rows=3, columns=2 of 8)"


def test_without_a_free_column_a_process_counts_for_itself() -> None:
    shared = table(2)
    assert [shared.of(tenant, 0) is not None for tenant in ("a", "b", "c", "a")] == [True, True, False, True]


def test_growth_is_reported_once_and_earlier_usage_is_not() -> None:
    shared = table()
    first = of(shared, "t", 0)
    first.add(REQUESTS, 5)
    second = of(shared, "t", 1)
    assert second.grown_elsewhere(REQUESTS) == 0
    first.add(REQUESTS, 2)
    first.add(TOKENS, 10**12)
    assert (second.grown_elsewhere(REQUESTS), second.grown_elsewhere(TOKENS)) == (2, 10**12)
    assert (second.grown_elsewhere(REQUESTS), first.grown_elsewhere(REQUESTS)) == (0, 0)


def test_a_dead_process_has_no_active_requests_and_its_usage_stays() -> None:
    shared = table()
    first, second = of(shared, "t", 0), of(shared, "t", 1)
    first.set_active(7)
    first.add(REQUESTS, 50)
    second.set_active(2)
    assert second.grown_elsewhere(REQUESTS) == 50
    shared.release(0)
    assert (second.num_active_elsewhere(), second.grown_elsewhere(REQUESTS)) == (0, 0)
    assert of(shared, "t", 2).num_active_elsewhere() == 2
    successor = of(shared, "t", 0)
    successor.add(REQUESTS, 1)
    assert second.grown_elsewhere(REQUESTS) == 1


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, 100)), max_size=60))
def test_each_process_reads_all_usage_of_the_others(taken: list[tuple[int, int]]) -> None:
    shared = table()
    rows = [of(shared, "t", row) for row in range(ROWS)]
    read = [0] * ROWS
    for row, num in taken:
        rows[row].add(TOKENS, num)
        read[row] += rows[row].grown_elsewhere(TOKENS)
    for row in range(ROWS):
        read[row] += rows[row].grown_elsewhere(TOKENS)
        assert read[row] == sum(num for user, num in taken if user != row)
