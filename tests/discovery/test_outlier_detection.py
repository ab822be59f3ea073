"""Outlier detection of one worker as a table of events, by a clock that the test moves."""

import pytest

from gateway.discovery.outlier_detection import (
    LONGEST_S,
    WELL_AFTER,
    Ejection,
    EngineProgress,
    OutlierRules,
    OutlierState,
)

RULES = OutlierRules(num_failures=3, eject_s=10.0, stalled_s=60.0)


def fail(outlier: OutlierState, times: int, answered: int = 0) -> Ejection | None:
    ejections = [outlier.failed("it refused", answered) for _ in range(times)]
    assert not any(ejections[:-1])
    return ejections[-1]


def working(tokens: float, num_here: int = 1, usage: float = 0.5) -> EngineProgress:
    return EngineProgress(tokens, usage, num_here)


def test_failures_in_a_row_eject_a_worker() -> None:
    ejection = fail(OutlierState(RULES), 3)
    assert ejection == Ejection("failures", "failed requests (3 in a row): it refused", is_bounded=True)


def test_an_answer_between_failures_resets_the_count() -> None:
    outlier = OutlierState(RULES)
    assert fail(outlier, 2) is None
    assert fail(outlier, 2, answered=1) is None
    assert fail(outlier, 1, answered=1) is not None


def test_no_failure_ejects_where_it_is_turned_off() -> None:
    assert fail(OutlierState(OutlierRules(num_failures=0)), 100) is None


def test_each_ejection_lasts_twice_the_one_before() -> None:
    outlier, now = OutlierState(RULES), 0.0
    seconds = []
    for _ in range(7):
        ejection = outlier.failed("x", 0)
        while ejection is None:
            ejection = outlier.failed("x", 0)
        seconds.append(outlier.eject(ejection, now))
        assert not outlier.may_return(now + seconds[-1] - 0.1)
        now += seconds[-1]
        assert outlier.may_return(now)
        outlier.returned(now)
    assert seconds == [10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_S, LONGEST_S]


def test_after_readmission_one_failure_ejects_until_answers_went_well() -> None:
    outlier = OutlierState(RULES)
    outlier.eject(Ejection("failures", "x"), 0.0)
    outlier.returned(10.0)
    again = outlier.failed("it refused", 0)
    assert again is not None and "the first since readmission" in again.reason
    outlier.eject(again, 10.0)
    outlier.returned(30.0)
    assert fail(outlier, 2, answered=WELL_AFTER) is None
    assert fail(outlier, 1, answered=WELL_AFTER) is not None


def test_failures_during_an_ejection_do_not_count() -> None:
    outlier = OutlierState(RULES)
    outlier.eject(Ejection("failures", "x"), 0.0)
    assert outlier.failed("cut", 0) is None


def test_no_step_while_requests_wait_ejects_a_worker() -> None:
    outlier = OutlierState(RULES)
    assert outlier.looked(working(100.0), 0.0) is None
    assert outlier.looked(working(100.0), 59.0) is None
    ejection = outlier.looked(working(100.0, num_here=4), 61.0)
    assert ejection == Ejection("stalled", "no engine step in 61 s, with 4 requests")


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(working(101.0), id="tokens move"),
        pytest.param(working(100.0, usage=0.6), id="a long prompt fills the cache"),
        pytest.param(working(100.0, num_here=0), id="no request waits"),
    ],
)
def test_a_worker_with_progress_or_without_requests_is_not_stalled(then: EngineProgress) -> None:
    outlier = OutlierState(RULES)
    outlier.looked(working(100.0), 0.0)
    outlier.looked(then, 50.0)
    assert outlier.looked(then, 109.0) is None


def test_an_engine_that_reports_no_progress_is_not_judged() -> None:
    outlier = OutlierState(RULES)
    assert [outlier.looked(None, now) for now in (0.0, 1000.0)] == [None, None]


def stalled() -> OutlierState:
    outlier = OutlierState(RULES)
    outlier.looked(working(100.0), 0.0)
    ejection = outlier.looked(working(100.0), 60.0)
    assert ejection is not None
    outlier.eject(ejection, 60.0)
    return outlier


def test_a_stalled_worker_stays_ejected_while_requests_are_stuck() -> None:
    outlier = stalled()
    outlier.looked(working(100.0), 100.0)
    assert not outlier.may_return(100.0)


def test_a_stalled_worker_returns_when_its_steps_move() -> None:
    outlier = stalled()
    outlier.looked(working(101.0), 62.0)
    assert outlier.may_return(62.0)


def test_a_stalled_worker_without_requests_returns_after_a_while() -> None:
    outlier = stalled()
    outlier.looked(working(100.0, num_here=0), 62.0)
    assert not outlier.may_return(62.0)
    outlier.looked(working(100.0, num_here=0), 70.0)
    assert outlier.may_return(70.0)


def test_the_repr_of_a_worker_s_conduct_shows_the_state() -> None:
    assert (repr(OutlierState(RULES)), "no engine step" in repr(stalled())) == ("OutlierState(well)", True)
