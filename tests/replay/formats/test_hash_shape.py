from collections.abc import Callable

import pytest

from gateway.replay.formats.hash_shape import RULES, HashShape, shape_of

LENGTHS = (9000, 512, 100, 33, 1025, 4096)


def rows(size: int, rule: str) -> list[tuple[int, int, int]]:
    return [(length, 40, RULES[rule](length, 40, size)) for length in LENGTHS]


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128, 512, 1024])
@pytest.mark.parametrize("rule", list(RULES))
def test_lengths_and_numbers_of_hashes_show_the_block_size(size: int, rule: str) -> None:
    assert shape_of(rows(size, rule)) == HashShape(size, rule)


def test_a_size_that_is_no_power_of_two_is_found_where_it_is_the_only_one() -> None:
    assert shape_of([(length, 0, -(-length // 48)) for length in range(1, 1000)]) == HashShape(48)


def test_some_broken_rows_do_not_hide_the_block_size() -> None:
    assert shape_of([*rows(16, "prompts") * 10, (500, 1, 3)]) == HashShape(16)


def test_rows_without_a_common_size_are_refused() -> None:
    with pytest.raises(ValueError, match="no common block size: .* give it as --trace-block-size"):
        shape_of([(1000, 1, 3), (1000, 1, 60), (100, 1, 50), (5000, 1, 2)])


def test_rows_of_one_hash_have_the_usual_size() -> None:
    assert shape_of([(9, 1, 1), (600, 1, 1)]) == HashShape(512)


@pytest.mark.parametrize("rule", list(RULES))
def test_a_given_size_is_kept(rule: str) -> None:
    number: Callable[[int, int, int], int] = RULES[rule]
    assert shape_of([(1000, 9, number(1000, 9, 100))], 100).size == 100
    assert shape_of(rows(16, rule), 16) == HashShape(16, rule)
