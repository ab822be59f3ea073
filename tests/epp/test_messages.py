"""Messages of ext_proc; `tests/envoy/test_messages.py` reads the same bytes with Envoy's own modules."""

import pytest

from gateway.epp import messages
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb


def _read(data: bytes) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(data)


def test_a_pick_is_in_header_and_metadata() -> None:
    data = messages.picked_head("10.0.0.1:8000", [(b"a", b"\xff")], [b"b"], is_body=False, body=None)
    response = _read(data).request_headers.response
    first, second = response.header_mutation.set_headers
    assert (first.header.key, first.header.raw_value) == (messages.DESTINATION, b"10.0.0.1:8000")
    assert (second.header.key, second.header.raw_value) == ("a", b"\xff")
    assert list(response.header_mutation.remove_headers) == ["b"] and response.clear_route_cache
    assert _read(data).dynamic_metadata["envoy.lb"][messages.DESTINATION] == "10.0.0.1:8000"


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 124_000, 130_000])
@pytest.mark.parametrize("is_end", [False, True])
def test_pieces_are_short_and_only_the_last_ends(size: int, is_end: bool) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    found = [
        _read(each).request_body.response.body_mutation.streamed_response
        for each in messages.pieces(data, is_response=False, is_end=is_end)
    ]
    assert b"".join(each.body for each in found) == data
    assert all(len(each.body) <= messages.MAX_PIECE_BYTES for each in found)
    assert [each.end_of_stream for each in found].count(True) == (1 if is_end else 0)
    assert not is_end or found[-1].end_of_stream


def test_answers_that_change_nothing_name_their_event_only() -> None:
    for is_response, side in ((False, "request"), (True, "response")):
        head = pb.ProcessingResponse()
        getattr(head, f"{side}_headers").SetInParent()
        assert _read(messages.head(is_response=is_response)) == head
        assert _read(messages.body(None, is_response=is_response)).WhichOneof("response") == f"{side}_body"
        assert _read(messages.trailers(is_response=is_response)).WhichOneof("response") == f"{side}_trailers"


def test_each_endpoint_is_named_by_its_own_pick() -> None:
    for endpoint in ("10.0.0.1:1", "[::1]:80", "10.0.0.1:1", "10.0.0.1:1,10.0.0.2:1"):
        answer = _read(messages.picked_head(endpoint, [], [], is_body=True, body=b"new"))
        response = answer.request_body.response
        assert response.header_mutation.set_headers[0].header.raw_value == endpoint.encode()
        assert answer.dynamic_metadata["envoy.lb"][messages.DESTINATION] == endpoint
        assert response.body_mutation.body == b"new"
