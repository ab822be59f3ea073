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
def test_the_last_block_and_every_thirty_second_are_told(num_blocks: int, positions: tuple[int]) -> None:
    assert shared_positions(num_blocks) == positions


def test_a_promise_is_seen_by_others_until_it_ends(pair: tuple[Promises, Promises]) -> None:
    one, two = pair
    one.put(X, 4095, 1000)
    one.put(X, 7, 2000)
    assert columns(two, X, 999) == [7, 4095]
    assert columns(two, X, 1000) == [7]
    assert columns(one, X, 0) == [], "its own it knows better"
    assert columns(two, Y, 0) == []
    slot = one.put(X, 7, 500)
    assert columns(two, X, 600) == [4095]
    one.change(slot, X, 7, 700)
    assert columns(two, X, 600) == [7, 4095]
    one.change(slot, X, 7, 0)
    assert columns(two, X, 0) == [4095]
    one.change(slot, Y, 7, 700)
    assert columns(two, Y, 0) == [], "it was given up meanwhile"


def test_a_prompt_is_held_as_far_as_the_deepest_block_that_was_told(pair: tuple[Promises, Promises]) -> None:
    one, two = pair
    prompt = [BlockHash(1000 + i) for i in range(40)]
    one.put(prompt[31], 1, 10)
    one.put(prompt[39], 2, 10)
    assert two.holders(prompt, 0) == [(2, 40), (1, 32)]


def test_a_promise_is_taken_back_without_its_slot(pair: tuple[Promises, Promises]) -> None:
    one, two = pair
    slot = one.put(X, 4095, 1000)
    one.put(X, 7, 1000)
    assert one.column_in(slot) == 4095
    one.withdraw(X, 4095)
    one.withdraw(Y, 7)
    assert columns(two, X, 0) == [7]


def test_a_full_bucket_gives_up_what_ends_first(pair: tuple[Promises, Promises]) -> None:
    one, two = pair
    step = PROMISE_SLOTS // BUCKET
    blocks = [BlockHash(3 + i * step) for i in range(BUCKET + 1)]
    for i, block in enumerate(blocks):
        one.put(block, 1, 1000 - i if i < BUCKET else 5000)
    found = [bool(columns(two, block, 0)) for block in blocks]
    assert found == [True] * (BUCKET - 1) + [False, True]


def test_what_was_promised_at_a_worker_is_dropped_with_it(pair: tuple[Promises, Promises]) -> None:
    one, two = pair
    one.put(X, 1, 9)
    one.put(Y, 1, 9)
    one.put(X, 2, 9)
    one.drop_column(1, keep={Y})
    assert (columns(two, X, 0), columns(two, Y, 0)) == ([2], [1])
    one.clear()
    assert (columns(two, X, 0), columns(two, Y, 0)) == ([], [])


def test_the_promises_of_a_dead_process_are_released() -> None:
    table = Table(memoryview(bytearray(Table.num_bytes(2))), 2, contextlib.nullcontext)
    one, two = Promises(table, 0), Promises(table, 1)
    one.put(X, 1, 9)
    two.put(Y, 1, 9)
    table.release(0)
    assert (columns(two, X, 0), columns(one, Y, 0)) == ([], [1])
