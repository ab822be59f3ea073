"""Shortest forms of CBOR (RFC 8949, appendix A), and a digest that vLLM computed."""

import hashlib
from array import array

import pytest

from engines.sim.cbor import UINT, _head, block_digest


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"), (23, "17"), (24, "1818"), (255, "18ff"), (256, "190100"), (1000, "1903e8"),
        (65536, "1a00010000"), (1000000, "1a000f4240"), (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
    ],
)  # fmt: skip
def test_heads_have_their_shortest_form(value: int, encoded: str) -> None:
    assert _head(UINT, value).hex() == encoded


def test_values_out_of_range_are_rejected() -> None:
    with pytest.raises(OverflowError):
        _head(UINT, 2**64)


def test_a_block_is_encoded_as_parent_tokens_and_tagged_keys() -> None:
    parent = bytes(32)
    digest = block_digest(parent, array("I", [1, 24]), [("cache_salt", "x")])
    keys = b"\x81\x82\x6acache_salt\x61x"
    assert digest == hashlib.sha256(b"\x83\x58\x20" + parent + b"\x82\x01\x18\x18" + keys).digest()


def test_missing_keys_are_null() -> None:
    plain = block_digest(bytes(32), array("I", [1]), ())
    assert plain == hashlib.sha256(b"\x83\x58\x20" + bytes(32) + b"\x81\x01\xf6").digest()
