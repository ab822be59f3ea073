"""Large msgpack payloads read a piece at a time, so that no decoder holds the interpreter for long.

    batch    its events are left packed at first: their number is read from the array's head
    event    one of more than LARGE_BYTES becomes several of the same form, at most PORTION_BLOCKS each, every
             one the child of the one before; each goes through the adapter's own decoder

Decoders in C keep the interpreter's lock until they are done, in a thread too: 50 ms for a prompt of a
million tokens. The ends of items are found without decoding them: hashes as raw values, tokens by a pattern.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Raw, msgpack

from gateway.core.kv_events import DecodeError

LARGE_BYTES = 64 << 10
"""Payloads and events up to here are decoded in one go: a millisecond, 5 ms for the worst that fits in."""
MAX_EVENTS = 1 << 17
"""Events of one batch at most. SGLang with pages of one token publishes an event per token: a prompt of
100,000."""
MAX_EVENT_BLOCKS = 1 << 17
"""Blocks of one event at most: two million tokens at 16 a block."""
PORTION_BLOCKS = 1024
PORTION_TOKENS = 1 << 14
"""Tokens of a portion; also of the longest block of a large event."""

_INTEGER = rb"(?:[\x00-\x7f\xe0-\xff]|\xcc.|\xcd..|\xce.{4}|\xcf.{8}|\xd0.|\xd1..|\xd2.{4}|\xd3.{8})"
_TEXT = rb"|".join(rb"\x%02x.{%d}" % (0xA0 + size, size) for size in range(32))
_LONG_TEXT = rb"\xd9(?:%b)" % rb"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(32, 129))
"""Pattern of an image's digest, in place of a token number."""
_TOKEN = rb"(?:%b|%b|%b)" % (_INTEGER, _TEXT, _LONG_TEXT)
_raws = msgpack.Decoder(list[Raw]).decode
_map = msgpack.Decoder(dict[str, Raw]).decode
_NIL = Raw(b"\xc0")

FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "extra_keys")
PLACES = (1, 2, 3, 4, 8)
"""Positions of the same fields in an event that is an array; alike in all engines that publish."""


def array_head(packed: bytes | Raw) -> tuple[int, int]:
    """Number of items of an array, and the offset of the first one. Raises DecodeError."""
    head = bytes(memoryview(packed)[:5])
    kind = head[0] if head else 0
    if 0x90 <= kind <= 0x9F:
        return kind & 0x0F, 1
    if kind in (0xDC, 0xDD):
        size = 2 if kind == 0xDC else 4
        return int.from_bytes(head[1 : 1 + size], "big"), 1 + size
    raise DecodeError("expected an array")


def raw_events(packed: bytes | Raw) -> list[Raw]:
    """Events of a batch, not decoded. Raises DecodeError, and msgspec's errors."""
    if (num := array_head(packed)[0]) > MAX_EVENTS:
        raise DecodeError(f"a batch of {num:,} events, beyond {MAX_EVENTS:,}")
    return _raws(packed)


def portions(event: Raw, *, in_map: bool) -> Iterator[Raw | None]:
    """Portions that are equivalent to a large event; None where the caller may yield to other work. Raises
    DecodeError, and msgspec's errors."""
    yield None
    fields: dict[Any, Any] = _map(event) if in_map else dict(enumerate(_raws(event)))
    hashes, parent, tokens, size, extra = FIELDS if in_map else PLACES
    num = array_head(fields.get(hashes, _NIL))[0]
    if num > MAX_EVENT_BLOCKS:
        raise DecodeError(f"an event of {num:,} blocks, beyond {MAX_EVENT_BLOCKS:,}")
    yield None
    names = _raws(fields[hashes])
    yield None
    keys = _raws(fields[extra]) if _num_items(fields.get(extra, _NIL)) == num else None
    if (
        sum(len(memoryview(raw)) for name, raw in fields.items() if name not in (hashes, tokens, extra))
        > 1024
    ):
        raise DecodeError("a large event with a long name, beyond 1,024 bytes")  # each portion repeats it
    num_tokens = _num_items(fields.get(tokens, _NIL))
    width = _width(fields.get(size, _NIL), num, num_tokens)
    step = max(1, min(PORTION_BLOCKS, PORTION_TOKENS // width)) if width else PORTION_BLOCKS
    end = array_head(fields[tokens])[1] if width else 0
    for first in range(0, num, step):
        yield None
        some = names[first : first + step]
        portion = {**fields, hashes: some}
        if first and width:
            portion[parent] = names[first - 1]
        if keys:
            portion[extra] = keys[first : first + step]
        if width:
            start, count = end, len(some) * width
            end = _end_of(fields[tokens], start, count)
            portion[tokens] = Raw(_head(count) + bytes(memoryview(fields[tokens])[start:end]))
        yield Raw(msgpack.encode(portion if in_map else list(portion.values())))


def _num_items(packed: Raw) -> int:
    """Number of items of an array; 0 where there is none."""
    return 0 if bytes(memoryview(packed)[:1]) == b"\xc0" else array_head(packed)[0]


def _width(size: Raw, num: int, num_tokens: int) -> int:
    """Tokens per block; 0 where the event has none (a removal, an offload tier's store)."""
    if not num_tokens:
        return 0
    width: int | None = msgpack.decode(size, type=int | None)
    if width is None or not 0 < width <= PORTION_TOKENS or num_tokens != num * width:
        raise DecodeError(f"a large event of {num:,} blocks of {width} tokens with {num_tokens:,} tokens")
    return width


def _head(num: int) -> bytes:
    return b"\xdd" + num.to_bytes(4, "big")


def _end_of(tokens: Raw, start: int, num: int) -> int:
    """Offset behind `num` items that begin at `start`."""
    packed = memoryview(tokens)
    for bit in range(num.bit_length()):
        if num >> bit & 1:
            if (found := _run_of(1 << bit).match(packed, start)) is None:
                raise DecodeError("a large event with tokens that are neither numbers nor short texts")
            start = found.end()
    return start


@cache
def _run_of(num: int) -> re.Pattern[bytes]:
    """Pattern of a run of items. Lengths have as few values as PORTION_TOKENS has bits: patterns take long to
    compile."""
    return re.compile(_TOKEN + b"{%d}+" % num, re.DOTALL)
