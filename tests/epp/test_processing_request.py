"""Messages of Envoy, read as protobuf reads them."""

import random

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from gateway.epp.message_fields import MAX_BESIDE_BYTES, MAX_FIELDS
from gateway.epp.messages import ProtocolError
from gateway.epp.processing_request import RESPONSE_HEADERS, decode
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from tests.support import ext_proc_oracle as oracle


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def test_a_message_is_read() -> None:
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":path", raw_value=b"/v1")
    message.response_headers.headers.headers.add(key="old", value=b"text")
    message.response_headers.end_of_stream = True
    message.metadata_context.filter_metadata["envoy.lb"]["a"] = "b"
    message.protocol_config.request_body_mode = 4
    found = decode(message.SerializeToString())
    assert found.kind == RESPONSE_HEADERS and found.is_end
    assert found.headers == [(b":path", b"/v1"), (b"old", b"text")]
    assert found.has_modes and (found.request_mode, found.response_mode) == (4, 0)
    assert [pb.FilterMetadata.FromString(each) for each in found.metadata] == [message.metadata_context]


@given(st.integers(0, 1 << 64))
def test_any_message_is_read_as_protobuf_reads_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        data = oracle.some(rng)
        assert oracle.decoded(data) == oracle.expected(data), data


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_protobuf_reads_them(data: bytes) -> None:
    assert oracle.decoded(data) == oracle.expected(data)


END = b"\x10\x01"
ENTRY = field(1, field(1, field(1, b"a") + field(3, b"1")))
UNUSUAL = {
    "nothing": b"",
    "a repeated event is merged": field(4, field(1, b"a")) + field(4, END),
    "headers that come in parts": field(2, ENTRY) + field(2, ENTRY + b"\x18\x01"),
    "the last event counts": field(4, field(1, b"a") + END) + field(5, b"") + field(4, b""),
    "a body comes again": field(4, field(1, b"a") + field(1, b"b") + END + b"\x10\x00"),
    "a tag of five octets": b"\xa2\x80\x80\x80\x00\x02" + END,
    "a tag of six octets": b"\xa2\x80\x80\x80\x80\x00\x02" + END,
    "a tag over 32 bits": b"\xa2\x80\x80\x80\x10\x02" + END,
    "a size of five octets": b"\x22\x82\x80\x80\x80\x00" + END,
    "a size of six octets": b"\x22\x82\x80\x80\x80\x80\x00" + END,
    "an end of ten octets": field(4, b"\x10" + b"\x80" * 9 + b"\x01"),
    "an end beyond 64 bits": field(4, b"\x10" + b"\x80" * 9 + b"\x02"),
    "an end of eleven octets": field(4, b"\x10" + b"\x80" * 10 + b"\x01"),
    "an end of 2^32": field(4, b"\x10\x80\x80\x80\x80\x10"),
    "a mode below zero": field(11, b"\x08" + b"\xff" * 9 + b"\x01"),
    "a mode beyond 32 bits": field(11, b"\x08\x84\x80\x80\x80\x10"),
    "a field without a number": b"\x02\x00",
    "a group": b"\x53\x08\x01\x54",
    "a group in the place of a body": b"\x23\x08\x01\x24",
    "a group that another one ends": b"\x53\x5c",
    "a group that begins in a body": field(4, b"\x53") + b"\x54",
    "an end without a group": b"\x54",
    "100 groups": b"\x53" * 100 + b"\x54" * 100,
    "101 groups": b"\x53" * 101 + b"\x54" * 101,
    "60 groups within a body": field(4, b"\x53" * 60 + b"\x54" * 60),
    "a kind that does not exist": b"\x56",
    "fixed numbers": b"\x51" + b"0" * 8 + b"\x55" + b"0" * 4,
    "a fixed number that is cut": b"\x51" + b"0" * 7,
    "a number in the place of a body": b"\x20\x05",
    "a name that is not UTF-8": field(2, field(1, field(1, field(1, b"\xff")))),
    "a name with half a surrogate": field(2, field(1, field(1, field(1, b"\xed\xa0\x80")))),
    "a value that is not UTF-8": field(2, field(1, field(1, field(2, b"\xff")))),
    "broken trailers": field(6, b"\x0a\x05"),
    "trailers": field(7, field(1, b"anything")),
    "an event that is dropped, and broken": field(6, b"\x0a\x05") + field(4, b""),
    "a size that ends with the message": b"\x22",
    "a size over the message": b"\x22\x05\x0a\x00",
    "a size over the body": field(4, b"\x0a\x05") + b"\x52\x03abc",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_encodings(name: str) -> None:
    assert oracle.decoded(UNUSUAL[name]) == oracle.expected(UNUSUAL[name])


def test_metadata_of_a_message_may_come_in_parts() -> None:
    found = decode(field(8, b"ab") + field(8, b"c"))
    assert found.metadata == [b"ab", b"c"], "not decoded before it is looked up"


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
        decode(LARGE[name].SerializeToString())


@pytest.mark.parametrize("unit", [b"\x50\x01", b"\x0a\x00", b"\x22\x00", b"\x42\x00"])
def test_many_fields_are_limited_wherever_they_are(unit: bytes) -> None:
    many = unit * MAX_FIELDS
    decode(many)
    for broken in (many + unit, b"\x22\x80\x80\x10" + unit * (128 << 10), b"\x53" + many + unit + b"\x54"):
        with pytest.raises(ProtocolError):
            decode(broken)


def test_headers_are_counted() -> None:
    headers = [pb.HeaderValue()] * MAX_FIELDS
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers)))
    data = message.SerializeToString()
    assert len(decode(data).headers) == MAX_FIELDS
    with pytest.raises(ProtocolError, match="4,096 headers"):
        decode(data + field(2, field(1, field(1, b""))))


@pytest.mark.parametrize("name", ["request_body", "response_body"])
def test_a_large_body_passes(name: str) -> None:
    message = pb.ProcessingRequest(**{name: pb.HttpBody(body=b"x" * (8 << 20), end_of_stream=True)})
    message.metadata_context.filter_metadata["a"]["b"] = "c" * 10_000
    found = decode(message.SerializeToString())
    assert len(found.body) == 8 << 20 and found.is_end


def test_an_error_names_the_message() -> None:
    with pytest.raises(ProtocolError, match="not a ProcessingRequest") as caught:
        decode(b"\xff\xff")
    assert caught.value.status == 3
