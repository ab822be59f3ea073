import pytest

from gateway.core.prediction import Compared, compared, prediction_error
from gateway.core.usage import Usage
from gateway.core.value import replace
from tests.support.fakes import decision


@pytest.mark.parametrize(
    ("predicted", "reported", "block_size", "error"),
    [
        (64, 71, 16, 0),  # llama.cpp and MLX keep each token
        (64, 49, 16, 0),
        (64, 81, 16, 17),  # a block more
        (64, 80, 16, 16),  # whole blocks are compared exactly: an engine with blocks
        (64, 48, 16, -16),
        (64, 64, 16, 0),
        (64, 65, 1, 1),
        (0, 15, 16, 0),
    ],
)
def test_counts_without_blocks_are_right_within_a_block(
    predicted: int, reported: int, block_size: int, error: int
) -> None:
    assert prediction_error(predicted, reported, block_size) == error


@pytest.mark.parametrize(
    ("is_exact", "usage", "found"),
    [
        (True, Usage(100, 1, 64), Compared(0, 0)),
        (True, Usage(100, 1, 96), Compared(32, 0)),  # its events said all that it has
        (True, Usage(100, 1, 32), Compared(-32, 0)),
        (False, Usage(100, 1, 96), Compared(0, 32)),  # its last answer, in whole blocks
        (False, Usage(100, 1, 91), Compared(0, 27)),  # or to the token
        (False, Usage(0, 1, 91), Compared(0, 27)),  # an engine that counts no prompts
        (False, Usage(100, 1, 70), Compared(0, 0)),
        (False, Usage(100, 1, 32), Compared(-32, 0)),  # never less than was predicted
        (False, Usage(104, 1, 96), Compared(32, 0)),  # of another prompt than ours
    ],
)
def test_a_surplus_is_unknown_where_the_cache_is_not_known_exactly(
    is_exact: bool, usage: Usage, found: Compared
) -> None:
    made = decision()  # 64 of 100 tokens
    assert made.is_exact
    assert compared(made if is_exact else replace(made, candidates=()), usage) == found
