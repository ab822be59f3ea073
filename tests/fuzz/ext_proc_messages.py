"""Messages of ext_proc, whole and broken: both decoders must read the same, or reject them.

Input `n` of a seed is always the same.
"""

import random

from tests.support import ext_proc_oracle as oracle


def make(seed: int, number: int) -> bytes:
    return oracle.some(random.Random(f"ext_proc:{seed}:{number}"))


def check(data: bytes) -> None:
    """Raise AssertionError where the decoders differ."""
    found, expected = oracle.decoded(data), oracle.expected(data)
    assert found == expected, f"protobuf reads {expected}, we {found}"
