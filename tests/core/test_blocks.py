from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import (
    BlockHash,
    HashCache,
    hash_blocks,
    pack_extra,
    prompt_extra_keys,
    root_hash,
    tokens_of,
)

ROOT = root_hash("m")
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


def test_a_partial_last_block_has_no_hash() -> None:
    assert len(hash_blocks(tokens_of(range(35)), 16, ROOT)) == 2
    assert hash_blocks(tokens_of(range(15)), 16, ROOT) == []


@given(IDS, st.integers(1, 20))
def test_hashes_continue_from_the_last_full_block(ids: list[int], cut_blocks: int) -> None:
    whole = hash_blocks(tokens_of(ids), 4, ROOT)
    head = hash_blocks(tokens_of(ids[: cut_blocks * 4]), 4, ROOT)
    tail = hash_blocks(tokens_of(ids[cut_blocks * 4 :]), 4, head[-1] if head else ROOT)
    assert (head + tail if len(ids) > cut_blocks * 4 else head) == whole


@given(IDS, IDS)
def test_equal_hashes_mean_equal_prefixes(left: list[int], right: list[int]) -> None:
    a, b = (hash_blocks(tokens_of(ids), 2, ROOT) for ids in (left, right))
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        assert (x == y) == (left[: 2 * i + 2] == right[: 2 * i + 2])


@given(st.lists(st.lists(st.integers(0, 3), max_size=300), max_size=4), st.booleans(), st.integers(0, 20))
def test_cached_hashes_are_the_hashes(prompts: list[list[int]], with_adapter: bool, max_runs: int) -> None:
    cache = HashCache(max_runs)
    for ids in prompts + prompts:
        for size, tokens in ((1, tokens_of(ids)), (8, tokens_of(ids * 8))):
            extra = prompt_extra_keys("lora" if with_adapter else None, "salt", len(ids))
            for keys in (extra, None):
                assert cache.hash_blocks(tokens, size, ROOT, keys) == hash_blocks(tokens, size, ROOT, keys)
    assert len(cache) <= max_runs + max_runs // 8


def test_runs_of_small_blocks_are_longer_and_fewer() -> None:
    cache, tokens = HashCache(16), tokens_of(range(4096))
    for size, num_runs in ((16, 8), (1, 8 + 2)):
        cache.hash_blocks(tokens, size, ROOT)
        assert len(cache) == num_runs


def test_another_model_adapter_or_salt_is_another_block() -> None:
    tokens = tokens_of(range(64))

    def hashes(model: str, adapter: str | None, salt: str | None) -> tuple[int, ...]:
        return tuple(hash_blocks(tokens, 16, root_hash(model), prompt_extra_keys(adapter, salt, 4)))

    seen = {hashes(*key) for key in [("m", None, None), ("n", None, None), ("m", "a", None), ("m", None, "a"),
                                     ("m", "a", "a"), ("m", "a", "b")]}  # fmt: skip
    assert len(seen) == 6


def test_the_salt_is_in_the_first_block_and_the_adapter_in_each() -> None:
    assert prompt_extra_keys("a", "s", 3) == [["a", "s"], ["a"], ["a"]]
    assert prompt_extra_keys(None, "s", 3) == [["s"], [], []]
    assert prompt_extra_keys("a", None, 0) == []
    assert prompt_extra_keys(None, None, 3) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [(["ab"], ["a", "b"]), (["1"], [1]), (["a"], [b"a"]), ([["a"], "b"], [["a", "b"]]), ([None], [[]])],
)
def test_different_extra_keys_pack_differently(left: list[object], right: list[object]) -> None:
    assert pack_extra(left) != pack_extra(right)  # type: ignore[arg-type]


def test_empty_extra_keys_are_none() -> None:
    tokens = tokens_of(range(8))
    assert hash_blocks(tokens, 4, ROOT, [[], None]) == hash_blocks(tokens, 4, ROOT)


@pytest.mark.parametrize("ids", [[-1], [2**32]])
def test_ids_out_of_range_are_rejected(ids: list[int]) -> None:
    with pytest.raises(OverflowError):
        tokens_of(ids)


def test_a_run_dropped_by_another_thread_is_no_error() -> None:
    """Another thread drops it between the lookup and the update of its age."""

    class Emptied(OrderedDict[int, list[BlockHash]]):
        def move_to_end(self, key: int, last: bool = True) -> None:
            self.clear()
            super().move_to_end(key, last)

    cache, tokens = HashCache(), tokens_of(range(HashCache.RUN_BLOCKS * 8))
    cache._runs = Emptied()
    first = cache.hash_blocks(tokens, 8, root_hash("m"))
    assert cache.hash_blocks(tokens, 8, root_hash("m")) == first == hash_blocks(tokens, 8, root_hash("m"))
    assert len(cache) == 0
