"""Huffman code of HPACK, beside the library's."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2.huffman import HuffmanError, huffman_decoded

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.binary(max_size=300))
def test_each_string_is_read_again(string: bytes) -> None:
    assert huffman_decoded(ENCODER.encode(string)) == string


def test_each_symbol_is_read_again() -> None:
    every = bytes(range(256))
    assert huffman_decoded(ENCODER.encode(every)) == every
    for octet in range(256):
        assert huffman_decoded(ENCODER.encode(bytes([octet]))) == bytes([octet])


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_as_by_hpack(code: bytes) -> None:
    try:
        expected = decode_huffman(code)
    except HPACKDecodingError:
        with pytest.raises(HuffmanError):
            huffman_decoded(code)
    else:
        assert huffman_decoded(code) == expected


@pytest.mark.parametrize(
    ("code", "words"),
    [(b"\xff\xff\xff\xff", "EOS"), (b"\x1f\xff", "padding"), (b"\x18", "padding"), (b"\xff", "padding")],
)
def test_broken_codes(code: bytes, words: str) -> None:
    with pytest.raises(HuffmanError, match=words):
        huffman_decoded(code)


def test_padding_is_ones() -> None:
    assert huffman_decoded(b"\x1f") == b"a" and huffman_decoded(b"") == b""
