"""Packed table of one worker's engine hashes: key ─► block number, 12 bytes each where a dict costs 122.

    buckets   mixed key mod SPLIT**n ─► bucket             (one not yet split stands in SPLIT places)
    bucket    key 8 bytes, number 4 bytes, key, number …   searched as bytes

Buckets are split one after another as keys come, a few hundred keys at a time, so that no store pays for a
rebuild of all and the average bucket keeps its size. A key is an engine hash that is an integer, or the hash
of one that is bytes. A secret factor mixes it, so that no engine can name blocks that all fall into one
bucket.
"""

import secrets
from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from gateway.core.kv_events import EngineHash

SPLIT: Final = 3
"""Odd, so that keys with the same low bits, or counted up, are spread like any others."""
AVERAGE: Final = 96
"""Keys per bucket: fewer cost objects, more cost searching (half a microsecond for 96)."""

_FACTOR: Final = secrets.randbits(64) | 1
_MASK: Final = (1 << 64) - 1

_pack = Struct("<QI").pack
_names = Struct("<Q4x").iter_unpack
_numbers = Struct("<8xI").iter_unpack
_both = Struct("<QI").iter_unpack
_entries = Struct("12s").iter_unpack
_WIDTH: Final = 12


class EngineHashTable:
    def __init__(self) -> None:
        self.buckets = [bytearray()] * SPLIT  # one bucket, in as many places
        self._num = 0
        self._num_buckets = self._level = 1  # `_level`: number of buckets when this round of splits began
        self._next = 0

    def __len__(self) -> int:
        return self._num

    def add(self, names: Sequence[int], first: int) -> None:
        """Add the keys of consecutive blocks numbered from `first`; none of them may be known."""
        buckets, places = self.buckets, len(self.buckets)
        for number, name in enumerate(names, first):
            bucket = buckets[(name * _FACTOR & _MASK) % places]
            bucket += _pack(name, number)
        self._num += len(names)
        while self._num > self._num_buckets * AVERAGE:
            self._split()

    def find(self, name: int) -> int | None:
        bucket, at = self._at(name)
        return None if at < 0 else int.from_bytes(bucket[at + 8 : at + 12], "little")

    def pop(self, name: int) -> int | None:
        bucket, at = self._at(name)
        if at < 0:
            return None
        number = int.from_bytes(bucket[at + 8 : at + _WIDTH], "little")
        del bucket[at : at + _WIDTH]
        self._num -= 1
        return number

    def numbers(self) -> Iterator[int]:
        for bucket in self.parts():
            for (number,) in _numbers(bucket):
                yield number

    def items(self) -> Iterator[tuple[int, int]]:
        for bucket in self.parts():
            yield from _both(bucket)

    def parts(self) -> list[bytearray]:
        """Return the buckets, each once, for `entries_of`."""
        return list({id(bucket): bucket for bucket in self.buckets}.values())

    def _at(self, name: int) -> tuple[bytearray, int]:
        bucket = self.buckets[(name * _FACTOR & _MASK) % len(self.buckets)]
        packed = name.to_bytes(8, "little")
        at = bucket.find(packed)
        while at > 0 and at % _WIDTH:
            at = bucket.find(packed, at + 1)
        return bucket, at

    def _split(self) -> None:
        places, bucket = len(self.buckets), self.buckets[self._next]
        fresh: dict[int, list[bytes]] = {place: [] for place in range(self._next, places, self._level)}
        for (entry,), (name,) in zip(_entries(bucket), _names(bucket), strict=True):
            fresh[(name * _FACTOR & _MASK) % places].append(entry)
        for place, entries in fresh.items():
            self.buckets[place] = bytearray(b"".join(entries))
        self._num_buckets += SPLIT - 1
        self._next += 1
        if self._next == self._level:
            self._level, self._next = len(self.buckets), 0
            self.buckets *= SPLIT


def entries_of(part: bytearray) -> list[tuple[int, int]]:
    """Return the keys and numbers in a bucket; some may have gone from the table since it was returned."""
    return list(_both(part))


def keys_of(hashes: Sequence[EngineHash]) -> Sequence[int]:
    """Map engine hashes to 64-bit keys; the same hash always has the same key."""
    try:
        array("Q", hashes)  # type: ignore[type-var]  # the quickest check of all of them
    except (TypeError, OverflowError):
        return [key_of(each) for each in hashes]
    return hashes  # type: ignore[return-value]


def key_of(engine_hash: EngineHash) -> int:
    if isinstance(engine_hash, int) and 0 <= engine_hash < 1 << 64:
        return engine_hash
    return xxh3_64_intdigest(engine_hash if isinstance(engine_hash, bytes) else b"%d" % engine_hash)
