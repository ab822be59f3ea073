import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.decide.message_bounds import MAX_TOKEN_IDS, check_bounds
from gateway.epp.message_fields import FREE_BYTES, MAX_BESIDE_BYTES
from gateway.proto.kvgate.v1 import decide_pb2 as pb


def check(message: pb.DecideRequest) -> None:
    """Check it alone, and in a session."""
    for data in (message, pb.SessionRequest(tag=7, decide=message)):
        check_bounds(data.SerializeToString(), type(data))


def test_usual_messages_pass() -> None:
    headers = [pb.HttpField(name="a" * 100, value=b"v" * 100)] * 256
    check(pb.DecideRequest(path="/v1/completions", headers=headers, body=b"x" * (8 << 20), model="m"))
    check(pb.DecideRequest(token_ids=[128_000] * MAX_TOKEN_IDS, num_fallbacks=3, with_prefill=True))
    check(pb.DecideRequest())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.DecideRequest(token_ids=[1] * (MAX_TOKEN_IDS + 1)), "token ids are accepted"),
        (pb.DecideRequest(headers=[pb.HttpField()] * 40_000), "over 4,096 fields"),
        (pb.DecideRequest(headers=[pb.HttpField(value=b"x" * MAX_BESIDE_BYTES)]), "in addition to the body"),
        (pb.DecideRequest(exclude=["x" * 50] * 4000), "in addition to the body"),
        (pb.DecideRequest(model="m" * (1 << 20), body=b"{}"), "in addition to the body"),
    ],
    ids=["token ids", "headers", "a header", "excluded workers", "a model"],
)
def test_what_becomes_many_objects_is_limited(message: pb.DecideRequest, words: str) -> None:
    for data in (message, pb.SessionRequest(decide=message)):
        with pytest.raises(InvalidRequest, match=words):
            check_bounds(data.SerializeToString(), type(data))


def test_token_ids_one_by_one_are_fields() -> None:
    with pytest.raises(InvalidRequest, match="over 4,096 fields"):
        check_bounds(b"\x30\x01" * FREE_BYTES, pb.DecideRequest)
    assert len(pb.DecideRequest.FromString(b"\x30\x01" * 3).token_ids) == 3


def test_reports_are_short() -> None:
    report = pb.ReportRequest(decision_id="d" * MAX_BESIDE_BYTES)
    for data in (report, pb.SessionRequest(report=report)):
        with pytest.raises(InvalidRequest, match="in addition to the body"):
            check_bounds(data.SerializeToString(), type(data))


@given(st.binary(max_size=40), st.sampled_from([pb.DecideRequest, pb.SessionRequest]))
def test_broken_messages_are_left_to_protobuf(tail: bytes, kind: type) -> None:
    asked = pb.DecideRequest(body=b"x" * FREE_BYTES)
    whole = asked if kind is pb.DecideRequest else pb.SessionRequest(decide=asked)
    check_bounds(whole.SerializeToString() + tail, kind)
