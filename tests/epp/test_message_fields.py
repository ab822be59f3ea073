import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.epp.message_fields import MAX_FIELDS, fields_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb

DECIDE = pb.DecideRequest(method="PUT", path="/a", max_queue_ms=300, model="m", body=b"body")
METHOD, PATH, MODEL, BODY = (
    pb.DecideRequest.DESCRIPTOR.fields_by_name[name].number for name in ("method", "path", "model", "body")
)
IN_SESSION = pb.SessionRequest.DESCRIPTOR.fields_by_name["decide"].number


def contents(message: bytes, *within: int) -> list[tuple[int, bytes]]:
    return [(number, message[start:end]) for number, start, end in fields_of(message, within)]


def test_fields_with_a_length_are_found() -> None:
    found = contents(DECIDE.SerializeToString())
    assert sorted(found) == sorted([(METHOD, b"PUT"), (PATH, b"/a"), (MODEL, b"m"), (BODY, b"body")])
    assert contents(b"") == []


def test_fields_within_others_are_found_wherever_those_are() -> None:
    alone = contents(DECIDE.SerializeToString())
    once = pb.SessionRequest(decide=DECIDE).SerializeToString()
    tag = pb.SessionRequest(tag=7).SerializeToString()
    empty = pb.SessionRequest(decide=pb.DecideRequest()).SerializeToString()
    other = pb.SessionRequest(report=pb.ReportRequest(decision_id="d")).SerializeToString()
    for whole in (once, tag + once, once + tag, empty + once + empty, other + once + other):
        assert contents(whole, IN_SESSION) == alone
    assert contents(once + once, IN_SESSION) == alone * 2
    assert contents(other, IN_SESSION) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_fields_are_counted_over_all_of_the_message(depth: int) -> None:
    """Also where each of many has some."""
    unit = b"\x08\x01" * 60
    parts = (unit if depth == 0 else bytes([IN_SESSION << 3 | 2, len(unit), *unit])) * 70
    within = (IN_SESSION,) if depth else ()
    assert contents(parts[: len(parts) // 2], *within) == []
    with pytest.raises(InvalidRequest, match=f"over {MAX_FIELDS:,} fields"):
        contents(parts, *within)


@given(st.binary(max_size=200), st.sampled_from([(), (1,), (1, 2)]))
def test_any_bytes_are_read_to_an_end_within_them(message: bytes, within: tuple[int, ...]) -> None:
    for _, start, end in fields_of(message, within):
        assert 0 < start <= end <= len(message)
