"""The choice of prefixes, by predicted reuse and within the share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.warming.choice import MIN_PER_MINUTE, Chosen, Prospect, choose, predicted_reuse


def test_the_most_frequent_prefix_goes_first() -> None:
    rare, frequent = Prospect(-1, 100, 1.0), Prospect(-1, 100, 5.0)
    assert choose([rare, frequent], 1000, 16) == [Chosen(1, 100), Chosen(0, 100)]


def test_one_request_fills_all_that_lies_on_its_way() -> None:
    system, tools = Prospect(-1, 100, 9.0), Prospect(0, 50, 5.0)
    assert choose([system, tools], 1000, 1) == [Chosen(1, 150)]


def test_what_is_shared_by_two_prefixes_is_computed_once() -> None:
    prospects = [Prospect(-1, 100, 9.0), Prospect(0, 50, 5.0), Prospect(0, 70, 4.0)]
    assert choose(prospects, 1000, 16) == [Chosen(1, 150), Chosen(2, 70)]


def test_what_the_worker_holds_is_neither_sent_nor_counted() -> None:
    held, behind = Prospect(-1, 0, 9.0), Prospect(0, 50, 5.0)
    assert choose([held], 1000, 16) == []
    assert choose([held, behind], 50, 16) == [Chosen(1, 50)]


def test_what_is_rarely_used_is_not_worth_its_tokens() -> None:
    assert choose([Prospect(-1, 100, MIN_PER_MINUTE * 0.9)], 1000, 16) == []


def test_a_shorter_prefix_is_sent_where_the_longer_one_does_not_fit() -> None:
    assert choose([Prospect(-1, 400, 9.0), Prospect(-1, 100, 5.0)], 300, 16) == [Chosen(1, 100)]


@pytest.mark.parametrize(
    ("holders", "reuse"), [([], 8.0), ([1.0], 4.0), ([0.5], 2.2), ([0.0], 0.4), ([1.0, 0.0, 1.0], 0.2)]
)
def test_holders_keep_their_part_and_idle_ones_nearly_all(holders: list[float], reuse: float) -> None:
    assert predicted_reuse(8.0, holders) == pytest.approx(reuse)


@st.composite
def trees(draw: st.DrawFn) -> list[Prospect]:
    found: list[Prospect] = []
    for number in range(draw(st.integers(0, 25))):
        parent = draw(st.integers(-1, number - 1))
        is_behind_new = parent >= 0 and found[parent].num_new > 0
        num_new = draw(st.integers(1 if is_behind_new else 0, 100))
        found.append(Prospect(parent, num_new, draw(st.floats(0, 50))))
    return found


@given(trees(), st.integers(0, 600), st.integers(1, 5))
def test_never_more_than_the_share_or_the_number_and_always_the_same(
    prospects: list[Prospect], max_tokens: int, max_prefixes: int
) -> None:
    chosen = choose(prospects, max_tokens, max_prefixes)
    assert len(chosen) <= max_prefixes
    assert chosen == choose(prospects, max_tokens, max_prefixes)
    covered = set[int]()
    for each in chosen:
        at = each.end
        while at >= 0:
            covered.add(at)
            at = prospects[at].parent
    assert sum(prospects[at].num_new for at in covered) == sum(each.num_new for each in chosen)
    assert sum(each.num_new for each in chosen) <= max_tokens
