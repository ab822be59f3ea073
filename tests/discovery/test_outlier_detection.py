"""A worker's conduct as a table of what happens to it, by a clock that the test holds."""

import pytest

from gateway.discovery.outlier_detection import LONGEST_S, WELL_AFTER, Conduct, Ejection, Progress, Rules

RULES = Rules(num_failures=3, eject_s=10.0, stalled_s=60.0)


def fail(conduct: Conduct, times: int, answered: int = 0) -> Ejection | None:
    said = [conduct.failed("it refused", answered) for _ in range(times)]
    assert not any(said[:-1])
    return said[-1]


def working(tokens: float, num_here: int = 1, usage: float = 0.5) -> Progress:
    return Progress(tokens, usage, num_here)


def test_failures_in_a_row_eject_it() -> None:
    ejection = fail(Conduct(RULES), 3)
    assert ejection == Ejection("failures", "failed requests (3 in a row): it refused")


def test_an_answer_in_between_begins_the_row_anew() -> None:
    conduct = Conduct(RULES)
    assert fail(conduct, 2) is None
    assert fail(conduct, 2, answered=1) is None
    assert fail(conduct, 1, answered=1) is not None


def test_never_where_that_is_said() -> None:
    assert fail(Conduct(Rules(num_failures=0)), 100) is None


def test_it_is_let_in_after_a_while_that_doubles() -> None:
    conduct, now = Conduct(RULES), 0.0
    seconds = []
    for _ in range(7):
        ejection = conduct.failed("x", 0)
        while ejection is None:
            ejection = conduct.failed("x", 0)
        seconds.append(conduct.eject(ejection, now))
        assert not conduct.may_return(now + seconds[-1] - 0.1)
        now += seconds[-1]
        assert conduct.may_return(now)
        conduct.returned(now)
    assert seconds == [10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_S, LONGEST_S]


def test_let_in_again_one_failure_is_enough_until_it_has_answered_well() -> None:
    conduct = Conduct(RULES)
    conduct.eject(Ejection("failures", "x"), 0.0)
    conduct.returned(10.0)
    again = conduct.failed("it refused", 0)
    assert again is not None and "the first since readmission" in again.reason
    conduct.eject(again, 10.0)
    conduct.returned(30.0)
    assert fail(conduct, 2, answered=WELL_AFTER) is None
    assert fail(conduct, 1, answered=WELL_AFTER) is not None


def test_what_fails_while_it_is_ejected_is_of_before() -> None:
    conduct = Conduct(RULES)
    conduct.eject(Ejection("failures", "x"), 0.0)
    assert conduct.failed("cut", 0) is None


def test_no_step_while_requests_wait_ejects_it() -> None:
    conduct = Conduct(RULES)
    assert conduct.looked(working(100.0), 0.0) is None
    assert conduct.looked(working(100.0), 59.0) is None
    ejection = conduct.looked(working(100.0, num_here=4), 61.0)
    assert ejection == Ejection("stalled", "no step in 61 s, with 4 requests")


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(working(101.0), id="tokens move"),
        pytest.param(working(100.0, usage=0.6), id="a long prompt fills the cache"),
        pytest.param(working(100.0, num_here=0), id="nobody waits"),
    ],
)
def test_it_is_not_stalled(then: Progress) -> None:
    conduct = Conduct(RULES)
    conduct.looked(working(100.0), 0.0)
    conduct.looked(then, 50.0)
    assert conduct.looked(then, 109.0) is None


def test_an_engine_that_does_not_tell_is_not_judged() -> None:
    conduct = Conduct(RULES)
    assert [conduct.looked(None, now) for now in (0.0, 1000.0)] == [None, None]


def stalled() -> Conduct:
    conduct = Conduct(RULES)
    conduct.looked(working(100.0), 0.0)
    ejection = conduct.looked(working(100.0), 60.0)
    assert ejection is not None
    conduct.eject(ejection, 60.0)
    return conduct


def test_a_stalled_one_stays_out_while_requests_are_stuck_there() -> None:
    conduct = stalled()
    conduct.looked(working(100.0), 100.0)
    assert not conduct.may_return(100.0)


def test_a_stalled_one_comes_back_when_steps_move() -> None:
    conduct = stalled()
    conduct.looked(working(101.0), 62.0)
    assert conduct.may_return(62.0)


def test_a_stalled_one_that_has_nothing_left_is_tried_after_a_while() -> None:
    conduct = stalled()
    conduct.looked(working(100.0, num_here=0), 62.0)
    assert not conduct.may_return(62.0)
    conduct.looked(working(100.0, num_here=0), 70.0)
    assert conduct.may_return(70.0)


def test_its_state_is_visible() -> None:
    assert (repr(Conduct(RULES)), "no step" in repr(stalled())) == ("Conduct(well)", True)
