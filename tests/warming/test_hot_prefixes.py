"""The tree of prefixes: what is kept, where it branches, and what is forgotten."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.warming.hot_prefixes import BRANCH_BYTES, MAX_BRANCHES, Branch, HotPrefixes, PrefixSpace

SIZE = 4
SPACE = PrefixSpace("m", None, None, SIZE)
SHARED = list(range(12))


def noted(
    prefixes: HotPrefixes, ids: Sequence[int], space: PrefixSpace = SPACE, now: float = 0.0
) -> HotPrefixes:
    tokens = tokens_of(ids)
    extra = prompt_extra_keys(space.adapter, space.cache_salt, len(ids) // space.block_size)
    blocks = hash_blocks(tokens, space.block_size, root_hash(space.root), extra)
    prefixes.note(space, blocks, tokens, now)
    return prefixes


def made(*prompts: Sequence[int], max_bytes: int = 1 << 20, keep_s: float = 60.0) -> HotPrefixes:
    prefixes = HotPrefixes(max_bytes, keep_s)
    for ids in prompts:
        noted(prefixes, ids)
    return prefixes


def hot(prefixes: HotPrefixes, now: float = 0.0) -> list[Branch]:
    return prefixes.hot(lambda space: True, now)


def texts(prefixes: HotPrefixes) -> list[list[int]]:
    return [branch.prefix_tokens() for branch in hot(prefixes)]


def test_tokens_of_a_single_request_are_not_kept() -> None:
    prefixes = made(SHARED)
    assert hot(prefixes) == []
    assert prefixes.num_bytes == BRANCH_BYTES + 3 * 8, "hashes alone"


def test_the_shared_part_ends_at_the_block_where_requests_diverge() -> None:
    assert texts(made([*SHARED, 50, 51, 52, 53], [*SHARED, 50, 51, 60, 61])) == [SHARED]


def test_a_longer_prompt_leaves_its_own_tail_out() -> None:
    assert texts(made(SHARED, [*SHARED, *range(90, 98)])) == [SHARED]


def test_requests_that_diverge_at_each_block_make_no_longer_path() -> None:
    longest = list(range(3 * MAX_BRANCHES * SIZE))
    prompts = [longest[: number * SIZE] for number in range(3 * MAX_BRANCHES, 0, -1)]
    prefixes = made(longest, *prompts, longest, longest)
    counted = prefixes.hot(lambda space: True, 0.0)
    assert sum(branch.weight > 3 * MAX_BRANCHES for branch in counted) <= MAX_BRANCHES


def test_branches_follow_each_other_by_their_rates() -> None:
    one, two = [*SHARED, *range(20, 28)], [*SHARED, *range(30, 38)]
    found = hot(made(one, one, two, two, two))
    assert [branch.prefix_tokens() for branch in found] == [SHARED, two, one]
    assert [branch.parent for branch in found] == [None, found[0], found[0]]
    assert found[0].weight == 5.0


@pytest.mark.parametrize(
    "other", [PrefixSpace("m", None, "salt", SIZE), PrefixSpace("m", "lora", None, SIZE)]
)
def test_prompts_of_other_salts_and_adapters_share_nothing(other: PrefixSpace) -> None:
    prefixes = noted(made(SHARED), SHARED, other)
    assert hot(prefixes) == []
    noted(prefixes, SHARED, other)
    assert [branch.space for branch in hot(prefixes)] == [other]
    assert prefixes.hot(lambda space: space == SPACE, 0.0) == []


def test_a_salt_is_not_printed() -> None:
    assert "secret" not in repr(PrefixSpace("m", None, "secret", SIZE))


def test_what_no_request_had_for_a_while_is_forgotten() -> None:
    prefixes = made(SHARED, SHARED, keep_s=60.0)
    noted(prefixes, [*SHARED, *range(20, 24)], now=50.0)
    prefixes.forget(70.0)
    assert texts(prefixes) == [SHARED]
    prefixes.forget(111.0)
    assert (len(prefixes), prefixes.num_bytes) == (0, 0)


def test_rates_fall_with_time() -> None:
    (branch,) = hot(made(SHARED, SHARED))
    assert branch.per_minute(120.0) == pytest.approx(branch.per_minute(0.0) / 2)


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=6), st.sampled_from([None, "a", "b"])), max_size=40
)


@given(prompts, st.integers(BRANCH_BYTES, 8 * BRANCH_BYTES))
def test_the_tree_is_bounded_and_knows_only_what_two_requests_shared(
    drawn: list[tuple[list[int], str | None]], max_bytes: int
) -> None:
    prefixes, seen = HotPrefixes(max_bytes, 1e9), dict[tuple[str | None, tuple[int, ...]], int]()
    for number, (runs, salt) in enumerate(drawn):
        ids = [token for run in runs for token in [run] * SIZE]
        noted(prefixes, ids, PrefixSpace("m", None, salt, SIZE), float(number))
        for end in range(SIZE, len(ids) + 1, SIZE):
            seen[salt, tuple(ids[:end])] = seen.get((salt, tuple(ids[:end])), 0) + 1
        assert prefixes.num_bytes <= max_bytes
        assert prefixes.num_bytes == sum(branch.num_bytes for branch in prefixes._branches)
    for branch in hot(prefixes, float(len(drawn))):
        assert seen[branch.space.cache_salt, tuple(branch.prefix_tokens())] >= 2
        assert len(branch.prefix_tokens()) == SIZE * len(branch.prefix_hashes())
