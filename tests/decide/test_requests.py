import pytest

from gateway.core.errors import BodyTooLarge, GatewayError, InvalidRequest, UnsupportedContent
from gateway.decide.message_parts import MAX_APART_BYTES
from gateway.decide.requests import (
    MAX_EXCLUDED,
    MAX_HEADERS,
    MAX_PATH_CHARS,
    asked_of,
    report_of,
    session_request_of,
)
from gateway.decide.requests import http_of as http_of_asked
from gateway.http.messages import HttpRequest
from gateway.proto.kvgate.v1 import decide_pb2 as pb


def field(name: str, value: bytes = b"v") -> pb.HttpField:
    return pb.HttpField(name=name, value=value)


def http_of(message: pb.DecideRequest, max_body_bytes: int) -> HttpRequest:
    return http_of_asked(asked_of(message.SerializeToString()), max_body_bytes)


def whole_body(http: HttpRequest) -> bytes:
    return http.body if http.prompt is None else http.prompt.whole(http.body)


def test_a_request_is_taken_as_its_client_sent_it() -> None:
    headers = [field("Authorization", b"Bearer k "), field("x-gateway-destination-endpoint", b"10.6.6.6:1")]
    message = pb.DecideRequest(path="/v1/chat/completions?a=b", headers=headers, body=b"{}")
    http = http_of(message, 1000)
    assert (http.method, http.path, http.target) == (
        "POST",
        "/v1/chat/completions",
        b"/v1/chat/completions?a=b",
    )
    assert http.headers == [(b"authorization", b"Bearer k")] and http.body == b"{}"


def test_token_ids_become_a_completion() -> None:
    http = http_of(pb.DecideRequest(model="m", token_ids=[1, 2, 3]), 1000)
    assert http.path == "/v1/completions" and whole_body(http) == b'{"prompt":[1,2,3],"model":"m"}'
    assert whole_body(http_of(pb.DecideRequest(token_ids=[7]), 1000)) == b'{"prompt":[7]}'


@pytest.mark.parametrize(
    ("message", "is_apart"),
    [
        (pb.DecideRequest(model="m", token_ids=[1, 1 << 31], num_fallbacks=2, exclude=["w"]), True),
        (pb.DecideRequest(token_ids=[1] * (MAX_APART_BYTES + 1)), False),
        (pb.DecideRequest(path="/v1/completions?a=b", token_ids=[1]), False),
        (pb.DecideRequest(method="PUT", token_ids=[1]), False),
        (pb.DecideRequest(token_ids=[1], body=b"{}"), False),
        (pb.DecideRequest(model="m"), False),
    ],
    ids=["short", "long", "path", "method", "body", "none"],
)
def test_a_short_prompt_of_token_ids_comes_apart_from_its_message(
    message: pb.DecideRequest, is_apart: bool
) -> None:
    asked = asked_of(message.SerializeToString())
    in_session = session_request_of(pb.SessionRequest(tag=7, decide=message).SerializeToString())
    assert in_session[0].tag == 7 and in_session[1] is not None
    for each in (asked, in_session[1]):
        assert (each.prompt is not None) is is_apart
        made = pb.DecideRequest.FromString(each.message.SerializeToString())
        if each.prompt is not None:
            assert not made.token_ids
            made.token_ids.extend(each.prompt.ids)
        assert made == message


@pytest.mark.parametrize(
    "message",
    [
        pb.DecideRequest(path="v1"),
        pb.DecideRequest(path="/a b"),
        pb.DecideRequest(path="/a\r\nhost: x"),
        pb.DecideRequest(path="/ä"),
        pb.DecideRequest(path="/" + "a" * MAX_PATH_CHARS),
        pb.DecideRequest(method="GET /"),
        pb.DecideRequest(method="A" * 17),
        pb.DecideRequest(headers=[field("")]),
        pb.DecideRequest(headers=[field("a:b")]),
        pb.DecideRequest(headers=[field(":path")]),
        pb.DecideRequest(headers=[field("a", b"1\r\nb: 2")]),
        pb.DecideRequest(headers=[field("a")] * (MAX_HEADERS + 1)),
        pb.DecideRequest(headers=[field("a", b"x" * 70_000)]),
        pb.DecideRequest(exclude=["w"] * (MAX_EXCLUDED + 1)),
    ],
)
def test_what_is_no_http_is_refused(message: pb.DecideRequest) -> None:
    with pytest.raises(InvalidRequest):
        http_of(message, 1000)


def test_more_token_ids_than_a_body_may_have_are_refused() -> None:
    with pytest.raises(BodyTooLarge):
        http_of(pb.DecideRequest(token_ids=[1] * 501), 1000)


def test_garbage_is_no_message() -> None:
    assert asked_of(b"").message == pb.DecideRequest()
    for decode in (asked_of, session_request_of, report_of):
        for data in (b"\xff\xff", b"\x32\x01\x80\xff"):
            with pytest.raises(GatewayError, match="the message is not a"):
                decode(data)


def test_a_session_has_one_request_or_none() -> None:
    message, asked = session_request_of(b"")
    assert not message.WhichOneof("request") and asked is None
    report = pb.SessionRequest(tag=1, report=pb.ReportRequest(decision_id="d"))
    assert session_request_of(report.SerializeToString()) == (report, None)
    twice = pb.SessionRequest(decide=pb.DecideRequest(model="m")).SerializeToString()
    twice += pb.SessionRequest(decide=pb.DecideRequest(token_ids=[1])).SerializeToString()
    _, asked = session_request_of(twice)
    assert asked is not None and asked.message == pb.DecideRequest(model="m", token_ids=[1])
    replaced, asked = session_request_of(twice + report.SerializeToString())
    assert replaced == report and asked is None


def test_a_body_that_is_to_be_read_in_another_way_is_refused() -> None:
    for name, value in (("Content-Encoding", b"gzip"), ("Content-Type", b"text/json;charset=utf-16")):
        with pytest.raises(UnsupportedContent):
            http_of(pb.DecideRequest(headers=[field(name, value)], body=b"{}"), 1000)
