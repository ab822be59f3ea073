import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.verification.accuracy import (
    LEAST,
    MIN_CREDITED,
    WINDOW,
    Accuracy,
    prediction_error,
)


def after(*compared: tuple[int, int]) -> Accuracy:
    exactness = Accuracy()
    for predicted, reported in compared:
        exactness.compare(predicted, reported)
    return exactness


def test_a_few_answers_are_averaged_plainly() -> None:
    exactness = after((64, 64), (64, 32), (0, 32), (128, 128))
    assert exactness.share_right == pytest.approx(0.5)
    assert exactness.mean_error == pytest.approx(0.0)
    assert exactness.mean_abs_error == pytest.approx(16.0)


def test_recent_answers_weigh_most() -> None:
    wrong = [(64, 0)] * 50
    assert after(*wrong).share_right == pytest.approx(0.0)
    assert after(*wrong, *[(64, 64)] * 4 * WINDOW).share_right > 0.95


def test_is_wrong_lately_ends_after_a_window_of_right_answers() -> None:
    assert not after().was_wrong_lately
    assert after((64, 0)).was_wrong_lately
    assert after((64, 0), *[(64, 64)] * (WINDOW - 1)).was_wrong_lately
    assert not after((64, 0), *[(64, 64)] * WINDOW).was_wrong_lately


def test_a_few_wrong_answers_do_not_reduce_confidence() -> None:
    assert after(*[(64, 0)] * (MIN_CREDITED - 1)).confidence == 1.0
    assert after(*[(64, 0)] * MIN_CREDITED).confidence == LEAST


def test_cold_prompts_do_not_change_confidence() -> None:
    assert after(*[(0, 64)] * 100).confidence == 1.0
    assert after(*[(64, 0)] * MIN_CREDITED, *[(0, 0)] * 100).confidence == LEAST


def test_confidence_is_the_share_of_predicted_tokens_that_were_cached() -> None:
    assert after(*[(64, 32)] * 40).confidence == pytest.approx(0.5)
    assert after(*[(64, 128)] * 40).confidence == 1.0  # more than promised
    assert after(*[(1000, 980)] * 40).confidence == 1.0  # nearly all


def test_confidence_returns_by_right_answers_and_by_time() -> None:
    lost = [(64, 0)] * 40
    assert after(*lost, *[(64, 64)] * 4 * WINDOW).confidence == 1.0
    exactness = after(*lost)
    for _ in range(4 * WINDOW):
        exactness.rest()
    assert exactness.confidence == 1.0
    exactness = Accuracy()
    exactness.rest()  # nothing to return
    assert exactness.confidence == 1.0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))))
def test_figures_stay_in_their_bounds(compared: list[tuple[int, int]]) -> None:
    exactness = after(*compared)
    assert LEAST <= exactness.confidence <= 1.0
    assert -1e-9 <= exactness.share_right <= 1 + 1e-9
    assert exactness.mean_abs_error >= abs(exactness.mean_error) - 1e-6 * 10**6
    assert str(len(compared)) in repr(exactness)


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
    exactness = Accuracy()
    exactness.compare(predicted, reported, block_size)
    assert exactness.share_right == (0.0 if error else 1.0)
