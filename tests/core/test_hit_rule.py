import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.hit_rule import PLAIN, HitRule

EAGLE = HitRule(drops_last=True)


@pytest.mark.parametrize(
    ("rule", "num_blocks", "expected"),
    [
        (PLAIN, 5, 5),
        (EAGLE, 0, 0),
        (EAGLE, 1, 0),
        (EAGLE, 5, 4),
        (HitRule(48), 2, 0),  # blocks of 16
        (HitRule(48), 3, 3),
        (HitRule(48), 8, 6),
        (HitRule(48, drops_last=True), 3, 0),
        (HitRule(48, drops_last=True), 4, 3),  # vLLM drops a block, then rounds down to the unit
        (HitRule(8, drops_last=True), 2, 1),  # a unit below a block
    ],
)
def test_what_is_reused(rule: HitRule, num_blocks: int, expected: int) -> None:
    assert rule.num_reused(num_blocks, 16) == expected


@given(st.integers(0, 100), st.sampled_from([1, 16, 128]), st.integers(0, 5000), st.booleans())
def test_never_more_than_what_is_cached(num_blocks: int, size: int, unit: int, drops: bool) -> None:
    num = HitRule(unit, drops).num_reused(num_blocks, size)
    assert 0 <= num <= num_blocks
    assert not drops or not num_blocks or num < num_blocks


@pytest.mark.parametrize(
    ("rule", "is_newer", "expected"),
    [
        (HitRule(drops_last=True, drops_until=(0, 33)), False, EAGLE),
        (HitRule(drops_last=True, drops_until=(0, 33)), True, PLAIN),
        (HitRule(32, drops_last=True, drops_until=(0, 33)), True, HitRule(32)),
        (HitRule(), False, PLAIN),
    ],
)
def test_versions_settle_the_rule(rule: HitRule, is_newer: bool, expected: HitRule) -> None:
    assert rule.settled(is_newer=is_newer) == expected
