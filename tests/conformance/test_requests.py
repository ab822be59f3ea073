"""Every case of the table, whole, byte by byte and in random parts: the same bytes on both sides."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.cases import CASES, Case
from tests.conformance.wire import Wire, pieces, run

NAMES = [case.name for case in CASES]
SHORT = [case for case in CASES if len(case.data) < 4000]


@pytest.fixture(scope="module")
def whole() -> dict[str, Wire]:
    return {case.name: run(case, [case.data]) for case in CASES}


def test_names_of_cases_are_unique() -> None:
    assert len(set(NAMES)) == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_each_case_is_answered_as_the_table_says(case: Case, whole: dict[str, Wire]) -> None:
    wire = whole[case.name]
    answers = wire.answers(case.methods)
    assert tuple(answer.status for answer in answers) == case.answers
    assert all(answer.is_whole for answer in answers)
    assert wire.is_open == case.is_open
    assert tuple(request.body for request in wire.received) == case.worker
    assert all(
        request.head.target == b"/v1/completions" or b"?" in request.head.target for request in wire.received
    )
    assert not wire.world.suspected and not wire.world.in_flight()
    if answers and not case.is_open and answers[-1].status >= 400:
        assert (b"connection", b"close") in answers[-1].headers


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_each_case_in_single_bytes_is_answered_the_same(case: Case, whole: dict[str, Wire]) -> None:
    same(run(case, pieces(case.data, range(len(case.data)))), whole[case.name])


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_worker_that_answers_between_the_bytes_changes_no_answer(
    case: Case, whole: dict[str, Wire]
) -> None:
    same(run(case, pieces(case.data, range(len(case.data))), eager=True), whole[case.name])


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_case_in_random_parts_is_answered_the_same(data: st.DataObject, whole: dict[str, Wire]) -> None:
    case = data.draw(st.sampled_from(SHORT))
    cuts = data.draw(st.lists(st.integers(1, max(len(case.data) - 1, 1)), max_size=8))
    same(run(case, pieces(case.data, cuts), eager=data.draw(st.booleans())), whole[case.name])


def same(wire: Wire, expected: Wire) -> None:
    assert wire.out() == expected.out()
    assert wire.to_worker == expected.to_worker
    assert wire.handed == expected.handed
    assert wire.is_open == expected.is_open
