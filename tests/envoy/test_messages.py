"""Our minimal messages beside Envoy's own (xds-protos): the same bytes, read by the other side."""

from typing import Any

import pytest

from gateway.epp import messages
from gateway.epp.dynamic_metadata import MetadataKey
from gateway.epp.messages import BodyMode
from gateway.epp.processing_request import decode
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from tests.envoy.xds import external_processor

pytestmark = pytest.mark.envoy

envoy = external_processor()


def _read(data: bytes) -> Any:
    message = envoy.ProcessingResponse.FromString(data)
    assert message.SerializeToString() == data, "every field is known to Envoy, under the same number"
    return message


def test_a_pick_is_read_by_envoy() -> None:
    data = messages.picked_head("10.0.0.1:8000", [(b"a", b"\xff")], [b"b"], is_body=False, body=None)
    message = _read(data)
    response = message.request_headers.response
    first, second = response.header_mutation.set_headers
    assert (first.header.key, first.header.raw_value) == (messages.DESTINATION, b"10.0.0.1:8000")
    assert (second.header.key, second.header.raw_value) == ("a", b"\xff")
    assert first.append_action == first.OVERWRITE_IF_EXISTS_OR_ADD
    assert list(response.header_mutation.remove_headers) == ["b"] and response.clear_route_cache
    assert message.dynamic_metadata["envoy.lb"][messages.DESTINATION] == "10.0.0.1:8000"


def test_a_buffered_pick_is_read_by_envoy() -> None:
    message = _read(messages.picked_head("[::1]:80", [], [], is_body=True, body=b"new"))
    assert message.request_body.response.body_mutation.body == b"new"


@pytest.mark.parametrize("is_response", [False, True])
def test_other_answers_are_read_by_envoy(is_response: bool) -> None:
    side = "response" if is_response else "request"
    head = _read(messages.head(is_response=is_response, changed=[(b"a", b"1")], removed=[b"b"]))
    assert head.WhichOneof("response") == f"{side}_headers"
    assert _read(messages.trailers(is_response=is_response)).WhichOneof("response") == f"{side}_trailers"
    passed = _read(messages.body(None, is_response=is_response))
    assert passed.WhichOneof("response") == f"{side}_body"
    changed = getattr(_read(messages.body(b"x", is_response=is_response)), f"{side}_body")
    assert changed.response.body_mutation.body == b"x"


def test_an_immediate_response_is_read_by_envoy() -> None:
    message = _read(messages.immediate(429, [(b"retry-after", b"3")], b"{}", "kvgate_429")).immediate_response
    assert (message.status.code, message.body, message.details) == (429, b"{}", "kvgate_429")
    assert message.headers.set_headers[0].header.raw_value == b"3"


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 124_000, 130_000])
@pytest.mark.parametrize("is_end", [False, True])
def test_pieces_are_short_and_only_the_last_ends(size: int, is_end: bool) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    found = [
        _read(each).request_body.response.body_mutation.streamed_response
        for each in messages.pieces(data, is_response=False, is_end=is_end)
    ]
    assert b"".join(each.body for each in found) == data
    assert all(len(each.body) <= messages.MAX_PIECE_BYTES for each in found)
    assert [each.end_of_stream for each in found].count(True) == (1 if is_end else 0)
    assert not is_end or found[-1].end_of_stream


def test_envoys_message_is_read_by_us() -> None:
    given = envoy.ProcessingRequest()
    given.request_headers.headers.headers.add(key=":path", raw_value=b"/v1")
    given.request_headers.headers.headers.add(key="old", value="text")
    given.request_headers.end_of_stream = True
    given.metadata_context.filter_metadata["envoy.lb"]["a"] = "b"
    given.protocol_config.request_body_mode = BodyMode.FULL_DUPLEX_STREAMED
    given.protocol_config.response_body_mode = BodyMode.BUFFERED
    given.attributes["x"]["y"] = 1.0
    message = decode(given.SerializeToString())
    assert message.headers == [(b":path", b"/v1"), (b"old", b"text")] and message.is_end
    assert MetadataKey("envoy.lb", "a").value_in(message.metadata) == "b"
    assert MetadataKey("envoy.lb", "c").value_in(message.metadata) is None
    assert MetadataKey("none", "a").value_in(message.metadata) is None
    assert message.has_modes and (message.request_mode, message.response_mode) == (4, 2)


@pytest.mark.parametrize("message", ["ProcessingRequest", "ProcessingResponse"])
def test_field_numbers_and_modes_are_envoys(message: str) -> None:
    ours, theirs = getattr(pb, message).DESCRIPTOR, getattr(envoy, message).DESCRIPTOR
    assert ours.fields
    for field in ours.fields:
        assert theirs.fields_by_name[field.name].number == field.number
    modes = envoy.ProcessingRequest.DESCRIPTOR.file.pool.FindEnumTypeByName(
        "envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode"
    )
    assert {mode.name: mode.value for mode in BodyMode}.items() <= {
        value.name: value.number for value in modes.values
    }.items()
