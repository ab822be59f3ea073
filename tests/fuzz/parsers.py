"""Without sockets: each input whole and in its parts must give the same result, and the one of h11."""

import logging

import pytest

from tests.conformance.wire import Answered, Wire, pieces
from tests.fuzz import judge
from tests.fuzz.inputs import Input

ASK = b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n{"model":"m","prompt":[1,2,3]}'


class Errors(logging.Handler):
    """Log handler that keeps errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


def check(given: Input) -> None:
    """Raise AssertionError for any error."""
    errors = Errors()
    logger = logging.getLogger("kvgate")
    logger.addHandler(errors)
    try:
        check_client(given)
        check_worker(given)
    finally:
        logger.removeHandler(errors)
    assert not errors.found, errors.found[0]


def check_client(given: Input) -> None:
    whole, parted = _client([given.data]), _client(pieces(given.data, given.cuts))
    assert parted.out() == whole.out(), "the client's answers depend on the parts"
    assert parted.to_worker == whole.to_worker, "the worker's requests depend on the parts"
    assert parted.is_open == whole.is_open, "whether it is closed depends on the parts"
    bodies = [body for _, _, body in whole.handed]
    verdict = judge.requests(given.data)
    if judge.takes_more(given.data):
        return
    assert bodies == list(verdict.bodies[: len(bodies)]), f"h11 reads {verdict.bodies}, we {bodies}"
    if verdict.is_malformed:
        statuses = [answer.status for answer in whole.answers(_methods(whole)) if answer.status >= 200]
        assert not whole.is_open, f"h11 says malformed, and it is open after {statuses}"
        assert len(statuses) <= len(bodies) + 1
        if len(statuses) > len(bodies):
            assert statuses[-1] in judge.REFUSALS


def _methods(wire: Wire) -> list[bytes]:
    return [method.encode() for method, _, _ in wire.handed]


def _client(parts: list[bytes]) -> Wire:
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        wire.send(parts)
        assert not wire.world.in_flight()
        wire.answers(_methods(wire))
        if wire.is_open:
            wire.client.lose()
        assert wire.world.is_clean()
    wire.client.end = (
        "" if wire.client.end == "closed" and not wire.connection._is_closing else wire.client.end
    )
    return wire


def check_worker(given: Input) -> None:
    data = given.answer
    whole = _answer([data], given.closes)
    parted = _answer(pieces(data, given.answer_cuts), given.closes)
    num = 2 if data.endswith((b"\n", b"\r")) else 3  # an empty line behind an answer is seen if it is late
    assert parted[:num] == whole[:num], "the client's answer depends on the parts"
    answer = whole[0]
    if answer is None or answer.status == 502 or not answer.is_whole:
        return
    if judge.takes_more(data) or b'data: {"error":' in answer.body:
        return
    expected = judge.answer(data, closes=given.closes)
    assert (answer.status, answer.body) == expected, f"h11 reads {expected}, we {answer}"


def _answer(parts: list[bytes], closes: bool) -> tuple[Answered | None, bool, bool]:
    """Answer that the client gets, and whether its connection and the worker's are open after it."""
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        wire.client.feed(ASK)
        transport = wire.world.pools["w:1"].transports[0]
        transport.feed(*parts)
        if closes or transport.is_closing():
            transport.lose()
        answers = wire.answers()
        assert len(answers) <= 1, "one request, one answer"
        rests = wire.world.pools["w:1"].take() is transport.protocol
        is_open = wire.is_open
        if is_open:
            wire.client.lose()
        assert wire.world.is_clean()
    for answer in answers:
        answer.headers = [header for header in answer.headers if header[0] != b"x-request-id"]
    return answers[0] if answers else None, is_open, rests
