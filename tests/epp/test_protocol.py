"""The order of messages; tests/epp/test_picker.py has the malformed ones, through the whole gateway."""

import pytest

from gateway.epp.messages import BodyMode, ProtocolError
from gateway.epp.protocol import (
    PickProtocol,
    RequestData,
    RequestHead,
    RequestState,
    ResponseBegan,
    ResponseData,
    ResponseState,
    UnsupportedMode,
)
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from tests.support.ext_proc import (
    BUFFERED,
    DUPLEX,
    POST,
    request_body,
    request_headers,
    response_body,
    response_headers,
    trailers,
)


def _kinds(protocol: PickProtocol) -> list[str]:
    kinds = [str(pb.ProcessingResponse.FromString(each).WhichOneof("response")) for each in protocol.outbox]
    protocol.outbox.clear()
    return kinds


def test_without_an_announced_mode_bodies_are_duplex() -> None:
    protocol = PickProtocol()
    assert protocol.receive(request_headers(modes=None)) == RequestHead(list(POST), None)
    assert protocol.is_duplex and protocol.shows_answer and protocol.request is RequestState.BODY
    assert not protocol.outbox


def test_a_request_without_a_body_is_complete_at_once_in_each_mode() -> None:
    for mode in BodyMode:
        protocol = PickProtocol()
        protocol.receive(request_headers(is_end=True, modes=(mode, DUPLEX)))
        assert protocol.request is RequestState.WHOLE
        protocol.pick("10.0.0.1:1", [], [], b"", b"")
        assert _kinds(protocol) == ["request_headers"]


def test_a_changed_body_replaces_a_buffered_one() -> None:
    protocol = PickProtocol()
    protocol.receive(request_headers(modes=(BUFFERED, BUFFERED)))
    assert _kinds(protocol) == ["request_headers"]
    assert protocol.receive(request_body(b"old")) == RequestData(b"old")
    assert protocol.request is RequestState.WHOLE, "a buffered body is one message"
    protocol.pick("10.0.0.1:1", [], [], b"new", b"old")
    (message,) = [pb.ProcessingResponse.FromString(each) for each in protocol.outbox]
    assert message.request_body.response.body_mutation.body == b"new"
    protocol.outbox.clear()
    assert protocol.receive(trailers()) is None and _kinds(protocol) == ["request_trailers"]


UNREADABLE = [BodyMode.STREAMED, BodyMode.NONE, BodyMode.BUFFERED_PARTIAL, 5, 77]


@pytest.mark.parametrize("mode", UNREADABLE)
def test_a_body_that_cannot_be_read_first_passes_piece_by_piece(mode: int) -> None:
    protocol = PickProtocol()
    assert protocol.receive(request_headers(modes=(mode, BodyMode.NONE))) == UnsupportedMode(mode, list(POST))
    assert not protocol.outbox
    protocol.go_on([b"x-own"])
    head = pb.ProcessingResponse.FromString(protocol.outbox[0])
    assert list(head.request_headers.response.header_mutation.remove_headers) == ["x-own"]
    for piece in (request_body(b"abc"), request_body(b"", is_end=True), trailers()):
        assert protocol.receive(piece) is None
    assert _kinds(protocol) == ["request_headers", "request_body", "request_body", "request_trailers"]


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED, *UNREADABLE])
def test_a_tunnel_is_picked_at_its_headers_in_each_mode(mode: int) -> None:
    protocol = PickProtocol()
    head = protocol.receive(request_headers([*POST, (b"upgrade", b"x")], modes=(mode, mode)))
    assert isinstance(head, RequestHead) and protocol.is_tunnel and protocol.request is RequestState.WHOLE
    protocol.pick("10.0.0.1:1", [], [], b"", b"")
    assert protocol.receive(request_body(b"ping")) is None
    assert _kinds(protocol) == ["request_headers", "request_body"]


def test_what_was_on_its_way_at_a_refusal_is_dropped() -> None:
    protocol = PickProtocol()
    protocol.receive(request_headers())
    protocol.refuse(413, [], b"", "")
    for piece in (request_body(b"abc"), request_headers(), response_body(b"x"), trailers(), b"garbage"):
        assert protocol.receive(piece) is None
    assert _kinds(protocol) == ["immediate_response"]


def test_an_answer_passes_by_the_mode_of_its_body() -> None:
    for mode, kinds in ((DUPLEX, 2), (BUFFERED, 1), (BodyMode.STREAMED, 1)):
        protocol = PickProtocol()
        protocol.receive(request_headers(is_end=True, modes=(DUPLEX, mode)))
        protocol.pick("10.0.0.1:1", [], [], b"", b"")
        began = protocol.receive(response_headers(served="10.0.0.1:1"))
        assert isinstance(began, ResponseBegan) and began.served == "10.0.0.1:1" and not began.is_end
        data = protocol.receive(response_body(b"abc", is_end=True))
        assert data == ResponseData(b"abc", True) and protocol.response is ResponseState.ENDED
        protocol.outbox.clear()
        protocol.response_piece(ResponseData(b"abc", True), b"a" * 62_001)
        assert _kinds(protocol) == ["response_body"] * kinds
        assert protocol.receive(response_body(b"", is_end=True)) is None


def test_an_error_of_the_order_says_what_came_when() -> None:
    with pytest.raises(ProtocolError, match="response_body before response_headers") as caught:
        protocol = PickProtocol()
        protocol.receive(request_headers())
        protocol.receive(response_body(b""))
    assert caught.value.status == 3
