"""Bodies are counted while they are kept, and rejected beyond the budget."""

import pytest

from gateway.core.decode_errors import LARGE
from gateway.core.errors import BodyTooLarge, NoRoomForBody
from gateway.http.messages import HttpRequest
from gateway.server.body_budget import BodyBudget, Intake


def request() -> HttpRequest:
    return HttpRequest("POST", b"/", [])


def test_a_body_is_counted_from_its_first_byte_until_released() -> None:
    bodies, http = BodyBudget(100), request()
    intake = Intake(bodies, 50)
    assert intake.add(b"a" * 20) is None
    assert intake.add(b"b" * 10) is None
    assert bodies.num_bytes == 30
    intake.hand_to(http)
    intake.begin()
    assert (bodies.num_bytes, http.num_held, http.body) == (30, 30, b"a" * 20 + b"b" * 10)
    bodies.let_go(http)
    bodies.let_go(http)
    assert bodies.num_bytes == 0


def test_a_body_that_is_decoded_takes_more_room_until_released() -> None:
    bodies, http = BodyBudget(100), request()
    intake = Intake(bodies, 50)
    intake.add(b"a" * 30)
    intake.hand_to(http)
    with pytest.raises(NoRoomForBody):
        bodies.grow(http, 71)
    assert (bodies.num_bytes, http.num_held, bodies.num_refused) == (30, 30, 1)
    bodies.grow(http, 70)
    assert (bodies.num_bytes, http.num_held) == (100, 100)
    bodies.let_go(http)
    assert bodies.num_bytes == 0


@pytest.mark.parametrize("end", ["drop", "begin"])
def test_an_incomplete_body_is_released(end: str) -> None:
    bodies = BodyBudget(100)
    intake = Intake(bodies, 50)
    intake.add(b"abc")
    getattr(intake, end)()
    assert bodies.num_bytes == 0
    http = request()
    intake.hand_to(http)
    assert (http.body, http.num_held) == (b"", 0)


def test_a_body_over_the_limit_is_dropped() -> None:
    bodies = BodyBudget(100)
    intake = Intake(bodies, 50)
    assert intake.add(b"a" * 50) is None
    refusal = intake.add(b"b")
    assert isinstance(refusal, BodyTooLarge) and str(refusal).endswith("50 bytes; send a smaller one")
    assert (bodies.num_bytes, bodies.num_refused) == (0, 0)


def test_a_body_beyond_the_budget_is_rejected_as_retryable() -> None:
    bodies = BodyBudget(100)
    Intake(bodies, 80).add(b"a" * 70)
    late = Intake(bodies, 80)
    assert late.add(b"b" * 30) is None
    error = late.add(b"c")
    assert isinstance(error, NoRoomForBody)
    assert (error.status, error.retry_after_s, error.should_retry) == (503, 1, True)
    assert (bodies.num_bytes, bodies.num_refused) == (70, 1)
    assert "70 of 100 bytes, 1 refused" in repr(bodies)


@pytest.mark.parametrize(("length", "is_refused"), [(b"30", False), (b"31", True), (None, False)])
def test_a_declared_length_beyond_the_budget_is_rejected_before_the_body(
    length: bytes | None, is_refused: bool
) -> None:
    bodies = BodyBudget(100)
    Intake(bodies, 80).add(b"a" * 70)
    headers = [(b"host", b"a")] + ([(b"content-length", length)] if length else [])
    intake = Intake(bodies, 80)
    if is_refused:
        with pytest.raises(NoRoomForBody):
            intake.expect(headers)
    else:
        intake.expect(headers)
    assert (bodies.num_bytes, bodies.num_refused) == (70, int(is_refused))


def arriving(bodies: BodyBudget, num_bytes: int) -> Intake:
    intake = Intake(bodies, 4 * LARGE)
    assert intake.add(b"a" * num_bytes) is None
    return intake


@pytest.mark.parametrize("is_announced", [True, False])
def test_the_largest_body_that_still_arrives_gives_its_room_to_a_smaller_one(is_announced: bool) -> None:
    """Else a few clients that never finish keep all others out."""
    bodies, late = BodyBudget(5 * LARGE), request()
    largest, other = arriving(bodies, 3 * LARGE), arriving(bodies, 2 * LARGE)
    small = Intake(bodies, 4 * LARGE)
    if is_announced:
        small.expect([(b"content-length", b"10")])
    assert small.add(b"a" * 10) is None
    assert (bodies.num_bytes, bodies.num_refused) == (2 * LARGE + 10, 1)
    assert isinstance(largest.add(b"a"), NoRoomForBody) and isinstance(largest.hand_to(late), NoRoomForBody)
    assert (late.body, late.num_held) == (b"", 0)
    assert other.add(b"a") is None and small.hand_to(late) is None and late.body == b"a" * 10
    largest.begin()
    assert largest.add(b"next") is None and largest.hand_to(late) is None and late.body == b"next"


def test_a_body_gives_no_room_to_a_larger_one_nor_once_it_is_whole() -> None:
    bodies, http = BodyBudget(5 * LARGE), request()
    whole, first = arriving(bodies, 3 * LARGE), arriving(bodies, 2 * LARGE)
    whole.hand_to(http)
    error = Intake(bodies, 4 * LARGE).add(b"a" * 2 * LARGE)
    assert isinstance(error, NoRoomForBody)
    assert first.add(b"") is None and first.hand_to(request()) is None
    assert bodies.num_bytes == 5 * LARGE and not bodies.arriving


@pytest.mark.parametrize("end", ["drop", "begin"])
def test_a_large_body_that_ended_is_not_arriving(end: str) -> None:
    bodies = BodyBudget(5 * LARGE)
    getattr(arriving(bodies, LARGE), end)()
    assert not bodies.arriving
