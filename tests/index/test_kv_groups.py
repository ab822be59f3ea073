"""KV groups alone; the index with groups is tested by the contract and against the reference index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash
from gateway.index.kv_groups import MAX_LOOKS, Groups, Need, Search, need_of

RUN = [BlockHash(i) for i in range(8)]


@pytest.mark.parametrize(
    ("need", "cached", "most", "hit"),
    [
        (Need(None), "11101111", 8, 3),
        (Need(None), "11111111", 5, 5),
        (Need(2), "00000011", 8, 8),
        (Need(2), "00110101", 8, 4),
        (Need(2), "00110101", 3, 0),
        (Need(3), "11000000", 8, 2),  # the whole prefix is shorter than the window
        (Need(3), "01000000", 8, 0),
        (Need(1), "01000100", 8, 6),
        (Need(1), "00000000", 8, 0),
        (Need(1, 2), "00000001", 8, 8),
        (Need(1, 2), "00000001", 7, 0),
        (Need(2, 2), "00010101", 7, 6),
        (Need(1, 3), "00100100", 8, 6),
    ],
)
def test_group_allows_the_longest_hit_that_meets_its_need(
    need: Need, cached: str, most: int, hit: int
) -> None:
    blocks = {RUN[i]: 1 for i, bit in enumerate(cached) if bit == "1"}
    assert Search(need, blocks, RUN).longest(most) == hit


@pytest.mark.parametrize(
    ("kind", "size", "window", "need"),
    [
        ("sliding_window", 16, 1024, Need(64)),
        ("sliding_window", 16, 1025, Need(64)),
        ("sliding_window", 16, 1026, Need(65)),
        ("sliding_window_mla", 32, 128, Need(4, 2)),
        ("sliding_window", 16, 1, Need(1)),
        ("sliding_window", 0, None, Need(1)),
        ("mamba", 64, None, Need(1, 4, is_state=True)),
        ("mamba", 40, None, None),
        ("chunked_local_attention", 16, None, None),
        (None, 16, None, None),
    ],
)
def test_need_of_a_kind_with_blocks_of_16_tokens(
    kind: str | None, size: int, window: int | None, need: Need | None
) -> None:
    assert need_of(kind, size, window, 16) == need


@given(
    held=st.lists(st.integers(0, 255), min_size=3, max_size=3),
    needs=st.lists(st.sampled_from([Need(None), Need(1), Need(3), Need(2, 2), Need(1, 3, True)]), max_size=3),
    drops_last=st.booleans(),
)
def test_groups_bound_a_hit_as_one_look_at_each_length_would(
    held: list[int], needs: list[Need], drops_last: bool
) -> None:
    groups = Groups(1, num_full=2, needs=dict(enumerate(needs)))
    for group, bits in enumerate(held):
        groups.held[group] = {RUN[i]: 1 for i in range(8) if bits >> i & 1}

    def allows(need: Need, group: int, depth: int) -> bool:
        search = Search(need, groups.held[group], RUN, drops_last=drops_last)
        return search.longest(depth) == depth

    best = max(d for d in range(9) if not d or all(allows(n, g, d) for g, n in enumerate(needs)))
    assert groups.bound(RUN, 8, drops_last=drops_last) == best


def test_a_hit_that_shrinks_block_by_block_looks_each_block_up_once_per_group() -> None:
    num = 600
    hashes = [BlockHash(i) for i in range(num)]
    held = CountingDict(dict.fromkeys(hashes, 1))
    groups = Groups(1, needs={1: Need(num // 2), 2: Need(2), 3: Need(2)})
    groups.held = {1: held, 2: dict.fromkeys(hashes[::2], 1), 3: dict.fromkeys(hashes[1::2], 1)}
    assert groups.bound(hashes, num) == 0
    assert held.num_looks <= num


def test_more_groups_than_can_be_looked_at_allow_no_hit() -> None:
    num = MAX_LOOKS
    hashes = [BlockHash(i) for i in range(num)]
    held = CountingDict(dict.fromkeys(hashes, 1))
    groups = Groups(1, num_full=50, needs={group: Need(None) for group in range(50)})
    groups.held = dict.fromkeys(range(50), held)
    assert groups.bound(hashes, num) == 0
    assert held.num_looks <= 7 * num
    assert groups.bound(hashes[:100], 100) == 100


class CountingDict(dict[BlockHash, int]):
    num_looks = 0

    def __contains__(self, key: object) -> bool:
        self.num_looks += 1
        return super().__contains__(key)


def test_groups_bound_each_other_until_all_agree() -> None:
    groups = Groups(1)
    groups.begin(0)
    groups.learn(1, "sliding_window", 1, 3)
    groups.learn(2, "mamba", 1, None)
    groups.store(("GPU", 1), [0, 1, 2, 5, 6], RUN.__getitem__)
    groups.store(("GPU", 2), [3, 5], RUN.__getitem__)
    assert groups.bound(RUN, 8) == 0  # 7 by the window, 6 by the state, 3 by the window, 0
    groups.store(("GPU", 2), [2], RUN.__getitem__)
    assert groups.bound(RUN, 8) == 3


def test_removed_blocks_leave_no_state() -> None:
    groups = Groups(1)
    groups.learn(1, "mamba", 1, None)
    for place in (("GPU", 1), ("CPU", 1)):
        groups.store(place, [1, 1, 2], {1: RUN[1]}.get)
    groups.found([2], [RUN[2]])
    groups.store(("GPU", 1), [3], lambda name: None)
    assert groups.remove(("CPU", 1), [1, 1, 2, 9]) == 3
    groups.clear()
    assert (groups.names, groups.copies, groups.held, groups.unknown) == ({("CPU", 1): {}}, {}, {1: {}}, {})
