import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.index.engine_hashes import AVERAGE, SPLIT, EngineHashTable, key_of, keys_of


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40).map(lambda n: n * 7**20 % 2**64))))
def test_table_equals_a_dict(steps: list[tuple[bool, int]]) -> None:
    table, truth = EngineHashTable(), dict[int, int]()
    for number, (is_store, engine_hash) in enumerate(steps):
        if not is_store:
            assert table.pop(engine_hash) == truth.pop(engine_hash, None)
        elif engine_hash not in truth:
            table.add([engine_hash], number)
            truth[engine_hash] = number
        assert table.find(engine_hash) == truth.get(engine_hash)
    assert len(table) == len(truth)
    assert sorted(table.numbers()) == sorted(truth.values())


def test_table_grows_bucket_by_bucket() -> None:
    rng = random.Random(1)
    table = EngineHashTable()
    known = [rng.getrandbits(64) for _ in range(AVERAGE * 50)]
    for first in range(0, len(known), 10):
        table.add(known[first : first + 10], first)
    assert [table.find(engine_hash) for engine_hash in known] == list(range(len(known)))
    buckets = {id(bucket): len(bucket) for bucket in table.buckets}
    assert 48 <= len(buckets) <= 52
    assert sum(buckets.values()) == 12 * len(known)
    assert table.find(0) is table.pop(0) is None


def test_engine_hashes_with_equal_low_bits_are_spread() -> None:
    table = EngineHashTable()
    table.add([n << 32 for n in range(AVERAGE * 64)], 0)
    assert max(map(len, table.buckets)) < 12 * AVERAGE * 8


def test_engine_hashes_chosen_to_fall_into_one_bucket_are_spread() -> None:
    table = EngineHashTable()
    table.add([n * SPLIT**25 for n in range(AVERAGE * 64)], 0)
    assert max(map(len, table.buckets)) < 12 * AVERAGE * 8


def test_engine_hash_is_not_found_across_two_entries() -> None:
    """Bytes of one entry's number and of the next engine hash may look like a third engine hash."""
    number, follows = 0x01020304, 0x0A0B0C0D0E0F1011
    table = EngineHashTable()
    table.add([3], number)
    table.add([follows], 7)
    packed = number.to_bytes(4, "little") + follows.to_bytes(8, "little")
    across = int.from_bytes(packed[:8], "little")
    assert table.find(across) is None
    table.add([across], 9)
    assert (table.find(across), table.find(follows)) == (9, 7)


def test_engine_hashes_of_any_kind_have_keys() -> None:
    ints = [0, 5, 2**64 - 1]
    assert keys_of(ints) is ints
    mixed = [b"\x01" * 32, 5, 2**64, -1]
    keys = keys_of(mixed)
    assert keys == [key_of(each) for each in mixed] == keys_of(mixed)
    assert keys[1] == 5
    assert len(set(keys)) == 4
    assert all(0 <= engine_hash < 2**64 for engine_hash in keys)
