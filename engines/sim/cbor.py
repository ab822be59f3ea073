"""vLLM's block digest under --prefix-caching-hash-algo sha256_cbor, bit for bit.

The digest of block i is sha256 over canonical CBOR of (digest of block i-1, token ids, extra keys).
"""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256

from gateway.core.blocks import Tokens

UINT, BYTES, TEXT, ARRAY = 0x00, 0x40, 0x60, 0x80
NONE = b"\xf6"


def block_digest(parent: bytes, tokens: Tokens, extra_keys: Sequence[Sequence[str]]) -> bytes:
    """Block digest of 32 bytes. `extra_keys` are tagged: ("lora", name, path), ("cache_salt", salt)."""
    head = b"\x83" + _head(BYTES, len(parent)) + parent + _head(ARRAY, len(tokens))
    return sha256(head + b"".join(map(_uint, tokens)) + _extra(extra_keys)).digest()


def _extra(keys: Sequence[Sequence[str]]) -> bytes:
    if not keys:
        return NONE
    return _head(ARRAY, len(keys)) + b"".join(_array(key) for key in keys)


def _array(texts: Sequence[str]) -> bytes:
    return _head(ARRAY, len(texts)) + b"".join(map(_text, texts))


def _text(text: str) -> bytes:
    raw = text.encode()
    return _head(TEXT, len(raw)) + raw


@cache  # a vocabulary's worth of small byte strings, which makes a block's digest 3 µs
def _uint(value: int) -> bytes:
    return _head(UINT, value)


def _head(kind: int, value: int) -> bytes:
    """Head of a CBOR item: major type and argument in the shortest form."""
    if value < 24:
        return bytes((kind | value,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * width):
            return bytes((kind | code,)) + value.to_bytes(width, "big")
    raise OverflowError(f"{value} does not fit in 8 bytes")
