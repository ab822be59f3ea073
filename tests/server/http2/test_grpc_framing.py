"""Messages, timeouts and statuses as bytes; hpack reads what is written."""

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2.grpc_framing import (
    RESPONSE_HEAD,
    GrpcError,
    MessageReader,
    http_error,
    prefix,
    timeout_s,
    trailers,
)
from tests.support.http2 import message


@given(st.lists(st.binary(max_size=30), max_size=6), st.lists(st.integers(0, 250), max_size=8))
def test_messages_are_read_in_any_pieces(messages: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(prefix(each) + each for each in messages)
    reader, found = MessageReader(30), []
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for start, end in zip(edges, edges[1:], strict=False):
        found += reader.feed(whole[start:end])
    assert found == messages and reader.num_held == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x01\0\0\0\x01a", 12),
        (b"\x02\0\0\0\x01a", 13),
        (b"\0\0\0\0\x0b", 8),
        (b"\0\xff\xff\xff\xff", 8),
    ],
    ids=["compressed", "flags", "too long", "4 GiB"],
)
def test_a_message_is_refused_as_soon_as_its_prefix_is_there(data: bytes, status: int) -> None:
    for cut in range(len(data)):
        reader = MessageReader(10)
        with pytest.raises(GrpcError) as caught:
            reader.feed(message(b"good") + data[:cut])
            reader.feed(data[cut:])
        assert caught.value.status == status


def test_a_dropped_reader_holds_nothing() -> None:
    reader = MessageReader(10)
    reader.feed(b"\0\0\0\0\x05ab")
    assert reader.num_held == 7 and repr(reader) == "MessageReader(7 of 10 bytes)"
    reader.drop()
    assert reader.num_held == 0


def test_the_constant_head_is_what_hpack_reads() -> None:
    assert Decoder().decode(RESPONSE_HEAD) == [(":status", "200"), ("content-type", "application/grpc")]
    assert Decoder().decode(http_error(415)) == [(":status", "415")]


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("plain text!", "plain text!"), ("50 % of ä\n", "50 %25 of %C3%A4%0A"), ("a" * 9000, "a" * 1024)],
)
def test_trailers_carry_the_status_and_its_text(text: str, encoded: str) -> None:
    assert Decoder().decode(trailers(14, text)) == [("grpc-status", "14"), ("grpc-message", encoded)]


def test_ok_has_no_text() -> None:
    assert Decoder().decode(trailers(0, "")) == [("grpc-status", "0")]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"250m", 0.25),
        (b"7u", 7e-6),
        (b"99999999n", 0.099999999),
    ],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"1s", b"-1S", b"123456789S", b"1 S"])
def test_malformed_timeouts(value: bytes) -> None:
    with pytest.raises(GrpcError):
        timeout_s(value)
