import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prediction import Compared
from gateway.observability.verification.accuracy import LEAST, MIN_CREDITED, WINDOW, Accuracy


def after(*compared: tuple[int, int]) -> Accuracy:
    exactness = Accuracy()
    for predicted, reported in compared:
        exactness.compare(predicted, reported, Compared(reported - predicted, 0))
    return exactness


def test_a_few_answers_are_averaged_plainly() -> None:
    exactness = after((64, 64), (64, 32), (0, 32), (128, 128))
    assert exactness.exact_share == pytest.approx(0.5)
    assert exactness.mean_error == pytest.approx(0.0)
    assert exactness.mean_abs_error == pytest.approx(16.0)


def test_recent_answers_weigh_most() -> None:
    wrong = [(64, 0)] * 50
    assert after(*wrong).exact_share == pytest.approx(0.0)
    assert after(*wrong, *[(64, 64)] * 4 * WINDOW).exact_share > 0.95


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
    assert -1e-9 <= exactness.exact_share <= 1 + 1e-9
    assert exactness.mean_abs_error >= abs(exactness.mean_error) - 1e-6 * 10**6
    assert str(len(compared)) in repr(exactness)


def test_answers_with_an_unknown_surplus_are_not_compared_and_earn_confidence() -> None:
    exactness = after((64, 32))
    for _ in range(WINDOW):
        exactness.compare(64, 128, Compared(0, 64))
    assert (exactness.num_compared, exactness.num_unknown, exactness.num_answers) == (1, WINDOW, WINDOW + 1)
    assert (exactness.exact_share, exactness.mean_abs_error) == (0.0, 32.0)
    assert not exactness.was_wrong_lately
    assert exactness.confidence > 0.95
