"""Every answer of the table, whole, byte by byte and in random parts.

The client gets the same and no byte of a second answer; a connection with surplus or missing bytes is
not used again.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.answers import ANSWERS, AnswerCase
from tests.conformance.cases import LENGTH, P, head
from tests.conformance.wire import Answered, Wire, pieces
from tests.support.worlds.exchanges import FakePool

NAMES = [case.name for case in ANSWERS]
ERROR = b'"code":"worker_failed"}}\n\n'
ASKED = {
    "1.1": head(LENGTH) + P,
    "1.0": head(LENGTH, first=b"POST /v1/completions HTTP/1.0") + P,
    "1.0 kept": head(LENGTH, b"Connection: keep-alive", first=b"POST /v1/completions HTTP/1.0") + P,
}


class Outcome:
    """Outcome of one answer, for the client and for both connections."""

    def __init__(self, case: AnswerCase, parts: list[bytes], version: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            self.wire = Wire(patch)
            self.wire.client.feed(ASKED[version])
            pool = self.wire.world.pools["w:1"]
            transport = pool.transports[0]
            transport.feed(*parts)
            if case.closes or transport.is_closing():
                transport.lose()
            self.end = transport.end
            self.num_connections = len(pool.transports)
            (self.answer,) = self.wire.answers()
            self.is_open, self.left_by_client = self.wire.is_open, self.wire.client.end
            self.suspected = bool(self.wire.world.suspected)
            self.next_body, self.rests = self._ask_again(pool) if self.is_open else (b"ok", False)

    def _ask_again(self, pool: FakePool) -> tuple[bytes, bool]:
        """Body of the next answer on this client connection, and whether the worker's connection was kept."""
        first = pool.transports[0]
        is_reused = pool.take() is first.protocol
        if is_reused:
            pool.rest(first.protocol)
            first.out = b""
        else:
            pool.transports.clear()
        self.wire.client.out = b""
        self.wire.send([ASKED["1.1"]])
        (answer,) = self.wire.answers()
        return answer.body, is_reused

    def seen(self) -> tuple[object, ...]:
        answer = self.answer
        headers = [(name, value) for name, value in answer.headers if name != b"x-request-id"]
        kept = self.is_open, self.rests, self.suspected, self.num_connections
        return answer.status, headers, answer.body, answer.is_whole, *kept


@pytest.fixture(scope="module")
def whole() -> dict[tuple[str, str], Outcome]:
    return {
        (case.name, version): Outcome(case, [case.data], version) for case in ANSWERS for version in ASKED
    }


def test_names_of_answers_are_unique() -> None:
    assert len(set(NAMES)) == len(ANSWERS)


@pytest.mark.slow
@pytest.mark.parametrize("version", ASKED)
@pytest.mark.parametrize("case", ANSWERS, ids=NAMES)
def test_each_answer_reaches_the_client_as_the_table_says(
    case: AnswerCase, version: str, whole: dict[tuple[str, str], Outcome]
) -> None:
    outcome = whole[case.name, version]
    answer = outcome.answer
    assert answer.status == case.status
    assert outcome.rests == (case.rests and outcome.is_open)
    assert outcome.next_body == b"ok"
    is_bad = case.status == 502 or not case.is_whole or case.has_error
    assert outcome.suspected == is_bad
    ends = (
        {""} if case.rests else {"aborted", "closed"} if case.closes else {"aborted" if is_bad else "closed"}
    )
    assert outcome.end in ends
    assert b"INJECTED" not in answer.body
    assert not [name for name, _ in answer.headers if name == b"x-injected"]
    assert not outcome.wire.world.in_flight() and outcome.num_connections == 1
    if case.status == 502:
        assert b'"code":"worker_failed"' in answer.body
    else:
        check_body(case, answer, version, outcome)


def check_body(case: AnswerCase, answer: Answered, version: str, outcome: Outcome) -> None:
    if case.has_error:
        assert answer.body.startswith(case.body + b'data: {"error":')
        assert answer.body.endswith(ERROR)
    else:
        assert answer.body == case.body
    if version == "1.1":
        assert answer.is_whole == case.is_whole
        assert outcome.left_by_client == ("" if case.is_whole else "aborted")
    elif not case.is_whole:
        assert (
            outcome.left_by_client == "aborted"
        )  # read until the connection closes: only a reset shows the cut


@pytest.mark.slow
@pytest.mark.parametrize("version", ASKED)
@pytest.mark.parametrize("case", ANSWERS, ids=NAMES)
def test_each_answer_in_single_bytes_has_the_same_outcome(
    case: AnswerCase, version: str, whole: dict[tuple[str, str], Outcome]
) -> None:
    parts = pieces(case.data, range(len(case.data)))
    assert Outcome(case, parts, version).seen() == whole[case.name, version].seen()


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_answer_in_random_parts_has_the_same_outcome(
    data: st.DataObject, whole: dict[tuple[str, str], Outcome]
) -> None:
    case, version = data.draw(st.sampled_from(ANSWERS)), data.draw(st.sampled_from([*ASKED]))
    cuts = data.draw(st.lists(st.integers(1, max(len(case.data) - 1, 1)), max_size=8))
    outcome = Outcome(case, pieces(case.data, cuts), version)
    assert outcome.seen() == whole[case.name, version].seen()
