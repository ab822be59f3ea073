import pytest

from gateway.core.errors import BodyTooLarge, GatewayError, InvalidRequest, UnsupportedContent
from gateway.decide.requests import MAX_EXCLUDED, MAX_HEADERS, MAX_PATH_CHARS, decoded, http_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb


def field(name: str, value: bytes = b"v") -> pb.HttpField:
    return pb.HttpField(name=name, value=value)


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
    assert http.path == "/v1/completions" and http.body == b'{"prompt":[1,2,3],"model":"m"}'
    assert http_of(pb.DecideRequest(token_ids=[7]), 1000).body == b'{"prompt":[7]}'


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
    assert decoded(pb.DecideRequest, b"") == pb.DecideRequest()
    with pytest.raises(GatewayError, match="not a DecideRequest"):
        decoded(pb.DecideRequest, b"\xff\xff")


def test_a_body_that_is_to_be_read_in_another_way_is_refused() -> None:
    for name, value in (("Content-Encoding", b"gzip"), ("Content-Type", b"text/json;charset=utf-16")):
        with pytest.raises(UnsupportedContent):
            http_of(pb.DecideRequest(headers=[field(name, value)], body=b"{}"), 1000)
