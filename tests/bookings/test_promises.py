import contextlib

import pytest

from gateway.bookings.promises import BUCKET, Promises, shared_positions
from gateway.bookings.shared_ledger import PROMISE_SLOTS, Table
from gateway.core.blocks import BlockHash

X, Y = BlockHash(2**64 - 1), BlockHash(12345)


@pytest.fixture
def pair() -> tuple[Promises, Promises]:
    table = Table(memoryview(bytearray(Table.num_bytes(2))), 2, contextlib.nullcontext)
    return Promises(table, 0), Promises(table, 1)


def columns(promises: Promises, block: BlockHash, now_ms: int) -> list[int]:
    return sorted(column for column, _ in promises.holders([block], now_ms))


@pytest.mark.parametrize(
    ("num_blocks", "positions"),
    [(0, ()), (1, (0,)), (5, (4,)), (32, (31,)), (33, (32, 31)), (64, (63, 31)), (70, (69, 63, 31))],
)
def test_the_last_block_and_every_thirty_second_are_published(num_blocks: int, positions: tuple[int]) -> None:
    assert shared_positions(num_blocks) == positions


def test_a_promise_is_seen_by_other_processes_until_it_expires(pair: tuple[Promises, Promises]) -> None:
    first, second = pair
    first.put(X, 4095, 1000)
    first.put(X, 7, 2000)
    assert columns(second, X, 999) == [7, 4095]
    assert columns(second, X, 1000) == [7]
    assert columns(first, X, 0) == [], "its own promises are counted elsewhere"
    assert columns(second, Y, 0) == []
    slot = first.put(X, 7, 500)
    assert columns(second, X, 600) == [4095]
    first.change(slot, X, 7, 700)
    assert columns(second, X, 600) == [7, 4095]
    first.change(slot, X, 7, 0)
    assert columns(second, X, 0) == [4095]
    first.change(slot, Y, 7, 700)
    assert columns(second, Y, 0) == [], "the slot was given up meanwhile"


def test_overlap_reaches_the_deepest_published_block(pair: tuple[Promises, Promises]) -> None:
    first, second = pair
    prompt = [BlockHash(1000 + i) for i in range(40)]
    first.put(prompt[31], 1, 10)
    first.put(prompt[39], 2, 10)
    assert second.holders(prompt, 0) == [(2, 40), (1, 32)]


def test_a_promise_is_withdrawn_without_its_slot(pair: tuple[Promises, Promises]) -> None:
    first, second = pair
    slot = first.put(X, 4095, 1000)
    first.put(X, 7, 1000)
    assert first.column_in(slot) == 4095
    first.withdraw(X, 4095)
    first.withdraw(Y, 7)
    assert columns(second, X, 0) == [7]


def test_a_full_bucket_drops_the_promise_that_expires_first(pair: tuple[Promises, Promises]) -> None:
    first, second = pair
    step = PROMISE_SLOTS // BUCKET
    blocks = [BlockHash(3 + i * step) for i in range(BUCKET + 1)]
    for i, block in enumerate(blocks):
        first.put(block, 1, 1000 - i if i < BUCKET else 5000)
    found = [bool(columns(second, block, 0)) for block in blocks]
    assert found == [True] * (BUCKET - 1) + [False, True]


def test_promises_at_a_worker_are_dropped_with_it(pair: tuple[Promises, Promises]) -> None:
    first, second = pair
    first.put(X, 1, 9)
    first.put(Y, 1, 9)
    first.put(X, 2, 9)
    first.drop_column(1, keep={Y})
    assert (columns(second, X, 0), columns(second, Y, 0)) == ([2], [1])
    first.clear()
    assert (columns(second, X, 0), columns(second, Y, 0)) == ([], [])


def test_the_promises_of_a_dead_process_are_released() -> None:
    table = Table(memoryview(bytearray(Table.num_bytes(2))), 2, contextlib.nullcontext)
    first, second = Promises(table, 0), Promises(table, 1)
    first.put(X, 1, 9)
    second.put(Y, 1, 9)
    table.release(0)
    assert (columns(second, X, 0), columns(first, Y, 0)) == ([], [1])
