"""Header blocks are decoded as the library decodes them, within limits."""

import random

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.messages import Header
from gateway.server.http2 import frames
from gateway.server.http2.frames import Http2Error
from gateway.server.http2.header_block import literal
from gateway.server.http2.header_decoder import MAX_KNOWN_BLOCKS, MAX_KNOWN_BYTES, HeaderDecoder
from gateway.server.http2.request_head import request_fault
from tests.support.http2 import POST

MAX_BYTES = 8192
NAMES = st.sampled_from([b"a", b"b", b":path", b"content-type", b"x-request-id"])
VALUES = st.one_of(
    st.sampled_from([b"1", b"2", b"3" * 200, b"4" * 1500, b""]), st.binary(max_size=20), st.just(b"\xff" * 90)
)
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


@given(st.lists(st.tuples(LISTS, st.booleans(), st.sampled_from([None, None, 0, 100, 4096])), max_size=12))
def test_blocks_are_read_as_they_were_written(
    blocks: list[tuple[list[Header], bool, int | None]],
) -> None:
    """Known blocks too: after a change of the table none is read as before."""
    encoder, decoder = Encoder(), HeaderDecoder(1 << 16)
    for headers, is_huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        for _ in range(2):
            assert decoder.decode(encoder.encode(headers, huffman=is_huffman)).headers == headers


def expected(library: Decoder, block: bytes) -> list[Header] | int:
    """Headers that the library reads of a block, or the code of its fault."""
    try:
        return [(name, value) for name, value in library.decode(block, raw=True)]
    except OversizedHeaderListError:
        return frames.ENHANCE_YOUR_CALM
    except (HPACKError, IndexError):
        return frames.COMPRESSION_ERROR


def found(decoder: HeaderDecoder, block: bytes) -> list[Header] | int:
    try:
        return decoder.decode(block).headers
    except Http2Error as fault:
        return fault.code


def changed(rng: random.Random, block: bytes) -> bytes:
    """A block with a broken, lost or additional byte, or cut."""
    if not block:
        return block
    at = rng.randrange(len(block))
    kind = rng.randrange(4)
    if kind == 0:
        return block[:at]
    if kind == 1:
        return block[:at] + bytes([rng.randrange(256)]) + block[at + 1 :]
    if kind == 2:
        return block[:at] + block[at + 1 :]
    return block[:at] + bytes([block[at] ^ 1 << rng.randrange(8)]) + block[at + 1 :]


def written(rng: random.Random, encoder: Encoder) -> bytes:
    """A block of an encoder with indexed, plain and sensitive headers, some repeated."""
    headers = []
    for _ in range(rng.randrange(8)):
        name = rng.choice([b"x-a", b"grpc-timeout", b":path", b"user-agent", bytes([rng.randrange(97, 123)])])
        value = rng.choice([b"", b"10S", rng.randbytes(rng.randrange(30)), b"v" * rng.randrange(2000)])
        headers.append((name, value, rng.random() < 0.3))
    if rng.random() < 0.2:
        encoder.header_table_size = rng.choice([0, 60, 500, 4096])
    block: bytes = encoder.encode(headers, huffman=rng.random() < 0.7)
    return block


@pytest.mark.parametrize("seed", range(20))
def test_whole_and_changed_blocks_are_read_or_refused_as_by_hpack(seed: int) -> None:
    rng = random.Random(f"hpack:{seed}")
    for _ in range(30):
        encoder, library, decoder = Encoder(), Decoder(MAX_BYTES), HeaderDecoder(MAX_BYTES)
        for _ in range(12):
            block = written(rng, encoder)
            if rng.random() < 0.2:
                block = changed(rng, block)
            outcome = expected(library, block)
            assert found(decoder, block) == outcome, block.hex()
            if isinstance(outcome, int):
                break


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_headers_or_a_fault(blocks: list[bytes]) -> None:
    library, decoder = Decoder(MAX_BYTES), HeaderDecoder(MAX_BYTES)
    for block in blocks:
        outcome, ours = expected(library, block), found(decoder, block)
        if isinstance(ours, int):
            is_long = bytes([0x80] * 3) in bytes(octet & 0x80 for octet in block)
            assert ours == outcome or is_long, "a number in many octets is refused, even if it is small"
            break
        assert ours == outcome
        assert request_fault(ours) == "" or request_fault(ours)


def test_blocks_that_leave_the_table_as_it_is_are_known() -> None:
    decoder = HeaderDecoder(1 << 16)
    plain = literal(b"a", b"b")
    first = decoder.decode(plain)
    assert decoder.decode(plain) is first
    decoder.decode(b"\x40\x01c\x01d")
    assert decoder.decode(plain) is not first
    long = literal(b"a", b"b" * MAX_KNOWN_BYTES)
    assert decoder.decode(long) is not decoder.decode(long)


def test_a_known_block_is_judged_once() -> None:
    decoder, block = HeaderDecoder(1 << 16), Encoder().encode(POST)
    decoder.decode(block)
    block = b"".join(literal(name, value) for name, value in POST)
    assert decoder.decode(block).request is decoder.decode(block).request
    assert decoder.decode(block).request.path == b"/test.Echo/Run"


def test_the_number_of_known_blocks_is_bounded() -> None:
    decoder = HeaderDecoder(1 << 16)
    for octet in range(MAX_KNOWN_BLOCKS):
        decoder.decode(literal(b"a", bytes([octet])))
    assert f"({MAX_KNOWN_BLOCKS} blocks known" in repr(decoder)
    decoder.decode(literal(b"b", b""))
    assert "(1 blocks known" in repr(decoder)


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x40", frames.COMPRESSION_ERROR),
        (b"\x40\x01a", frames.COMPRESSION_ERROR),
        (b"\x40\x01a\x7f", frames.COMPRESSION_ERROR),
        (b"\x40\x01a\x05bb", frames.COMPRESSION_ERROR),
        (b"\x00\x01a\x81\x18", frames.COMPRESSION_ERROR),
        (b"\xff\xff\xff\xff\xff\xff\xff", frames.COMPRESSION_ERROR),
        (b"\xff\x80\x80\x80\x80\x00", frames.COMPRESSION_ERROR),
        (b"\x80", frames.COMPRESSION_ERROR),
        (b"\xbe", frames.COMPRESSION_ERROR),
        (b"\x3f\xe2\x1f", frames.COMPRESSION_ERROR),
        (b"\x82\x20", frames.COMPRESSION_ERROR),
        (literal(b"a", b"b" * 300), frames.ENHANCE_YOUR_CALM),
    ],
)
def test_broken_and_large_blocks_end_the_connection(block: bytes, code: int) -> None:
    with pytest.raises(Http2Error) as caught:
        HeaderDecoder(300).decode(block)
    assert caught.value.code == code
