import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.index.engine_hashes import AVERAGE, EngineHashTable, key_of, keys_of


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40).map(lambda n: n * 7**20 % 2**64))))
def test_equal_to_a_dict(steps: list[tuple[bool, int]]) -> None:
    names, truth = EngineHashTable(), dict[int, int]()
    for number, (is_store, name) in enumerate(steps):
        if not is_store:
            assert names.pop(name) == truth.pop(name, None)
        elif name not in truth:
            names.add([name], number)
            truth[name] = number
        assert names.find(name) == truth.get(name)
    assert len(names) == len(truth)
    assert sorted(names.numbers()) == sorted(truth.values())


def test_tables_grow_bucket_by_bucket() -> None:
    rng = random.Random(1)
    names = EngineHashTable()
    known = [rng.getrandbits(64) for _ in range(AVERAGE * 50)]
    for first in range(0, len(known), 10):
        names.add(known[first : first + 10], first)
    assert [names.find(name) for name in known] == list(range(len(known)))
    buckets = {id(bucket): len(bucket) for bucket in names.buckets}
    assert 48 <= len(buckets) <= 52
    assert sum(buckets.values()) == 12 * len(known)
    assert names.find(0) is names.pop(0) is None


def test_names_with_equal_low_bits_are_spread() -> None:
    names = EngineHashTable()
    names.add([n << 32 for n in range(AVERAGE * 64)], 0)
    assert max(map(len, names.buckets)) < 12 * AVERAGE * 8


def test_a_name_is_not_found_across_two_entries() -> None:
    """Bytes of one entry's number and the next one's name may look like a third name."""
    number, follows = 0x01020304, 0x0A0B0C0D0E0F1011
    names = EngineHashTable()
    names.add([3], number)
    names.add([follows], 7)
    packed = number.to_bytes(4, "little") + follows.to_bytes(8, "little")
    across = int.from_bytes(packed[:8], "little")
    assert names.find(across) is None
    names.add([across], 9)
    assert (names.find(across), names.find(follows)) == (9, 7)


def test_engine_hashes_of_any_kind_have_names() -> None:
    ints = [0, 5, 2**64 - 1]
    assert keys_of(ints) is ints
    mixed = [b"\x01" * 32, 5, 2**64, -1]
    named = keys_of(mixed)
    assert named == [key_of(each) for each in mixed] == keys_of(mixed)
    assert named[1] == 5
    assert len(set(named)) == 4
    assert all(0 <= name < 2**64 for name in named)
