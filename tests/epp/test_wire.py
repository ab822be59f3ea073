"""Messages written by hand: protobuf reads them as it reads its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.epp import wire
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb

NAMES = st.one_of(st.sampled_from([b"x-a", b":path", b"content-type"]), st.binary(min_size=1, max_size=20))
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=200)), max_size=5)
SIZES = st.sampled_from([0, 1, 100, 127, 128, 16_383, 16_384, 62_000, 2_100_000])
TAGS = {
    wire.REQUEST_HEADERS: "request_headers",
    wire.RESPONSE_HEADERS: "response_headers",
    wire.REQUEST_BODY: "request_body",
    wire.RESPONSE_BODY: "response_body",
}


def change(mutation: pb.HeaderMutation, changed: list[Header], removed: list[bytes]) -> None:
    for name, value in changed:
        one = mutation.set_headers.add()
        one.append_action = 2
        one.header.key, one.header.raw_value = name.decode("latin-1"), value
    mutation.remove_headers.extend([name.decode("latin-1") for name in removed])


def made(tag: bytes) -> tuple[pb.ProcessingResponse, pb.CommonReply]:
    answer = pb.ProcessingResponse()
    reply = getattr(answer, TAGS[tag])
    reply.SetInParent()
    return answer, reply


@given(st.sampled_from(list(TAGS)), HEADERS, st.lists(NAMES, max_size=4))
def test_headers(tag: bytes, changed: list[Header], removed: list[bytes]) -> None:
    answer, reply = made(tag)
    reply.response.header_mutation.SetInParent()
    change(reply.response.header_mutation, changed, removed)
    assert pb.ProcessingResponse.FromString(wire.headers(tag, changed, removed)) == answer


@given(st.sampled_from(list(TAGS)), SIZES, st.booleans())
def test_streamed_pieces(tag: bytes, size: int, is_end: bool) -> None:
    answer, reply = made(tag)
    streamed = reply.response.body_mutation.streamed_response
    streamed.SetInParent()
    streamed.body, streamed.end_of_stream = b"x" * size, is_end
    written = wire.streamed(tag, b"x" * size, is_end)
    assert pb.ProcessingResponse.FromString(written) == answer and len(written) == answer.ByteSize()


@pytest.mark.parametrize("data", [b"", b"a", b"b" * 70_000])
@pytest.mark.parametrize("tag", TAGS)
def test_buffered_bodies(tag: bytes, data: bytes) -> None:
    answer, reply = made(tag)
    assert pb.ProcessingResponse.FromString(wire.passed(tag)) == answer
    reply.response.body_mutation.body = data
    assert pb.ProcessingResponse.FromString(wire.body(tag, data)) == answer


@given(st.integers(100, 599), HEADERS, st.binary(max_size=300), st.text(max_size=40))
def test_immediate_responses(status: int, changed: list[Header], content: bytes, details: str) -> None:
    answer = pb.ProcessingResponse()
    reply = answer.immediate_response
    reply.status.code, reply.body, reply.details = status, content, details
    reply.headers.SetInParent()
    change(reply.headers, changed, [])
    written = wire.immediate(status, changed, content, details.encode())
    assert pb.ProcessingResponse.FromString(written) == answer


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, (1 << 31) - 1])
def test_sizes_are_written_as_protobuf_writes_numbers(size: int) -> None:
    assert wire.size_of(size) == pb.HttpStatus(code=size).SerializeToString()[1:]


@given(
    HEADERS, st.lists(NAMES, max_size=4), st.one_of(st.none(), st.binary(max_size=300)), st.text(max_size=40)
)
def test_the_pick(changed: list[Header], removed: list[bytes], replaced: bytes | None, endpoint: str) -> None:
    answer, reply = made(wire.REQUEST_BODY)
    reply.response.clear_route_cache = True
    change(reply.response.header_mutation, [(b"destination", endpoint.encode()), *changed], removed)
    if replaced is not None:
        reply.response.body_mutation.body = replaced
    answer.dynamic_metadata.get_or_create_struct("envoy.lb")["destination"] = endpoint
    changes = wire.mutation([(b"destination", endpoint.encode()), *changed], removed)
    metadata = wire.dynamic_metadata(b"envoy.lb", b"destination", endpoint.encode())
    written = wire.picked(wire.REQUEST_BODY, changes, replaced, metadata)
    assert pb.ProcessingResponse.FromString(written) == answer
