"""Header blocks: decoded within limits, and beside hpack's own decoder; what is written, hpack reads."""

import logging

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2 import frames
from gateway.server.http2.frames import Frame, Http2Error
from gateway.server.http2.header_block import (
    MAX_KNOWN_BLOCKS,
    BlockIntake,
    HeaderDecoder,
    field_fault,
    literal,
    request_fault,
    trailers_fault,
)
from tests.support.http2 import POST

NAMES = st.sampled_from([b"a", b"b", b":path", b"content-type", b"x-request-id"])
LISTS = st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"2", b"3" * 200, b"4" * 1500, b""])), max_size=8)


@given(st.lists(LISTS, max_size=12))
def test_blocks_are_read_as_hpack_reads_them(blocks: list[list[tuple[bytes, bytes]]]) -> None:
    """Known blocks too: after a change of the table none is read as before."""
    encoder, decoder = Encoder(), HeaderDecoder(1 << 16)
    for headers in blocks:
        for _ in range(2):
            assert decoder.decode(encoder.encode(headers)) == headers


def test_the_number_of_known_blocks_is_bounded() -> None:
    decoder = HeaderDecoder(1 << 16)
    for first in range(0x81, 0x81 + 40):
        for second in range(0x81, 0x81 + 40):
            decoder.decode(bytes([first, second]))
    assert repr(decoder) == f"HeaderDecoder({MAX_KNOWN_BLOCKS} blocks known)"
    decoder.decode(literal(b"a", b"b"))
    assert repr(decoder) == "HeaderDecoder(0 blocks known)"


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x40", frames.COMPRESSION_ERROR),
        (b"\x40\x01a\x7f", frames.COMPRESSION_ERROR),
        (b"\x40\x01a\x05bb", frames.COMPRESSION_ERROR),
        (b"\xff\xff\xff\xff\xff\xff\xff", frames.COMPRESSION_ERROR),
        (b"\x80", frames.COMPRESSION_ERROR),
        (b"\x3f\xe2\x1f", frames.COMPRESSION_ERROR),
        (literal(b"a", b"b" * 300), frames.ENHANCE_YOUR_CALM),
    ],
)
def test_broken_and_large_blocks_end_the_connection(block: bytes, code: int) -> None:
    with pytest.raises(Http2Error) as caught:
        HeaderDecoder(300).decode(block)
    assert caught.value.code == code


@given(st.binary(max_size=60))
def test_any_bytes_are_headers_or_a_fault(block: bytes) -> None:
    decoder = HeaderDecoder(1 << 16)
    try:
        headers = decoder.decode(block)
    except Http2Error as error:
        assert error.code in (frames.COMPRESSION_ERROR, frames.ENHANCE_YOUR_CALM)
    else:
        assert request_fault(headers) == "" or request_fault(headers)


@given(
    st.binary(min_size=1, max_size=40),
    st.one_of(st.binary(max_size=40), st.just(b"v" * 127), st.just(b"v" * 40_000)),
)
def test_hpack_reads_literals(name: bytes, value: bytes) -> None:
    ((read_name, read_value),) = Decoder().decode(literal(name, value), raw=True)
    assert (read_name, read_value) == (name, value)


def test_a_good_request_has_no_fault() -> None:
    assert request_fault(list(POST)) == "" and trailers_fault([(b"x", b"y")]) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (b"X", b"", "upper case"),
        (b"", b"", "invalid"),
        (b"a b", b"", "invalid"),
        (b"a\0", b"", "invalid"),
        (b"upgrade", b"h2c", "connections"),
        (b"te", b"gzip", "connections"),
        (b"a", b"b\r\nc: d", "line breaks"),
        (b"a", b"\0", "line breaks"),
    ],
)
def test_malformed_headers(name: bytes, value: bytes, words: str) -> None:
    assert words in field_fault(name, value)
    assert (
        request_fault([*POST, (name, value)]) == trailers_fault([(name, value)]) == field_fault(name, value)
    )


def test_headers_are_not_logged() -> None:
    assert not logging.getLogger("hpack.hpack").isEnabledFor(logging.DEBUG)


def test_a_block_is_put_together_from_fragments() -> None:
    blocks = BlockIntake(10, 3)
    assert blocks.begin(Frame(1, frames.END_HEADERS, 1, b"whole")) == b"whole" and blocks.first is None
    assert blocks.begin(Frame(1, 0, 1, b"a")) is None and blocks.first is not None
    assert blocks.add(Frame(9, 0, 1, b"b")) is None
    assert blocks.add(Frame(9, frames.END_HEADERS, 1, b"c")) == b"abc" and blocks.first is None


@pytest.mark.parametrize("fragments", [[b"12345", b"678901"], [b"", b"", b"", b""], [b"12345678901"]])
def test_a_block_is_bounded_in_bytes_and_parts(fragments: list[bytes]) -> None:
    blocks = BlockIntake(10, 3)
    with pytest.raises(Http2Error, match="too large"):
        blocks.begin(Frame(1, 0, 1, fragments[0]))
        for fragment in fragments[1:]:
            blocks.add(Frame(9, 0, 1, fragment))
