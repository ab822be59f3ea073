"""Messages of ext_proc; `tests/envoy/test_messages.py` reads the same bytes with Envoy's own modules."""

import pytest
from google.protobuf.struct_pb2 import Struct

from gateway.epp import messages
from gateway.epp.message_fields import MAX_BESIDE_BYTES, MAX_FIELDS
from gateway.epp.messages import ProtocolError
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


def test_a_request_is_read() -> None:
    given = pb.ProcessingRequest()
    given.request_headers.headers.headers.add(key=":path", raw_value=b"/v1")
    given.request_headers.headers.headers.add(key="old", value=b"text")
    given.metadata_context.filter_metadata["envoy.lb"]["a"] = "b"
    message = messages.decode(given.SerializeToString())
    assert messages.headers_of(message.request_headers) == [(b":path", b"/v1"), (b"old", b"text")]
    assert messages.metadata_of(message, "envoy.lb", "a") == "b"
    assert messages.metadata_of(message, "none", "a") is None


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


def test_garbage_is_no_message() -> None:
    with pytest.raises(ProtocolError, match="not a ProcessingRequest"):
        messages.decode(b"\xff\xff")


HEADERS = pb.HttpHeaders(headers=pb.HeaderMap(headers=[pb.HeaderValue(value=b"x" * MAX_BESIDE_BYTES)]))
LARGE = {
    "headers": pb.ProcessingRequest(request_headers=HEADERS),
    "headers of an answer": pb.ProcessingRequest(response_headers=HEADERS),
    "beside a body": pb.ProcessingRequest(
        request_body=pb.HttpBody(body=b"{}"),
        metadata_context=pb.FilterMetadata(filter_metadata={"a" * MAX_BESIDE_BYTES: Struct()}),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_becomes_many_objects_is_limited(name: str) -> None:
    with pytest.raises(ProtocolError, match="in addition to a body"):
        messages.decode(LARGE[name].SerializeToString())


def test_headers_are_counted() -> None:
    many = pb.HttpHeaders(headers=pb.HeaderMap(headers=[pb.HeaderValue()] * (MAX_FIELDS + 1)))
    with pytest.raises(ProtocolError, match="4,096 headers"):
        messages.headers_of(many)
    many.headers.headers.pop()
    assert len(messages.headers_of(many)) == MAX_FIELDS


@pytest.mark.parametrize("name", ["request_body", "response_body"])
def test_a_large_body_passes(name: str) -> None:
    given = pb.ProcessingRequest(**{name: pb.HttpBody(body=b"x" * (8 << 20), end_of_stream=True)})
    given.metadata_context.filter_metadata["a"]["b"] = "c" * 10_000
    assert messages.decode(given.SerializeToString()) == given
