"""Cold starts, learnt from joins."""

import pytest

from gateway.scaling.cold_start import MOST_S, ColdStart


def test_nothing_is_known_before_the_first_join() -> None:
    cold = ColdStart()
    cold.look(0, 3, 0.0)
    cold.look(3, 3, 5.0)
    assert cold.seconds is None


def test_time_from_need_to_join() -> None:
    cold = ColdStart()
    cold.look(1, 1, 0.0)
    cold.look(2, 1, 10.0)
    cold.look(2, 1, 40.0)
    cold.look(2, 2, 55.0)
    assert cold.seconds == 45.0


def test_joins_without_a_need_teach_nothing() -> None:
    cold = ColdStart()
    cold.look(1, 1, 0.0)
    cold.look(1, 2, 10.0)
    assert cold.seconds is None


def test_need_that_is_over_is_forgotten() -> None:
    cold = ColdStart()
    for desired, up, at_s in ((2, 1, 0.0), (1, 1, 10.0), (2, 1, 100.0), (2, 2, 130.0)):
        cold.look(desired, up, at_s)
    assert cold.seconds == 30.0


def test_need_without_an_answer_is_no_cold_start() -> None:
    cold = ColdStart()
    cold.look(2, 1, 0.0)
    cold.look(2, 1, MOST_S + 1)
    cold.look(2, 2, MOST_S + 21)
    assert cold.seconds == 20.0


def test_several_joins_have_a_median() -> None:
    cold = ColdStart()
    cold.look(4, 1, 0.0)
    for up, at_s in ((2, 30.0), (3, 40.0), (4, 130.0)):
        cold.look(4, up, at_s)
    assert cold.seconds == 30.0  # of 30, 10 and 90


def test_time_left_is_the_median_less_the_time_that_has_passed() -> None:
    start = ColdStart()
    assert start.left_s(0.0) is None
    start.look(1, 0, 0.0)
    assert start.left_s(5.0) is None, "the first one is not known"
    start.look(1, 1, 30.0)
    assert start.left_s(40.0) == 30.0, "from a need that is still to come"
    start.look(2, 1, 100.0)
    assert start.left_s(112.0) == pytest.approx(18.0)
    assert start.left_s(200.0) == 0.0
