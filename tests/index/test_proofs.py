"""Blocks that are proven to be there, in the index beside those that events name."""

from collections.abc import Callable

import pytest

from gateway.core.kv_events import BlocksRemoved
from gateway.index.base import Index
from gateway.index.memory import MemoryIndex
from gateway.index.proofs import Proofs, stretches
from gateway.index.reference import ReferenceIndex
from tests.index.contract import ROOT, A, copied, prompt, stored

CHAIN = prompt(range(24))


@pytest.fixture(params=[MemoryIndex, ReferenceIndex])
def index(request: pytest.FixtureRequest) -> Index:
    make: Callable[[], Index] = request.param
    made = make()
    made.add_worker(A, ROOT, 4)
    return made


def depth(index: Index) -> int:
    return index.overlap(CHAIN).get(A, 0)


def test_what_is_proven_is_held_until_its_time_is_over(index: Index) -> None:
    links = Proofs(A, index, ROOT)
    assert links.prove(CHAIN[:4], 10.0) == 4
    assert links.prove(CHAIN[:2], 20.0) == 0
    assert (depth(index), repr(links)) == (4, "Proofs(4 blocks, 2 proofs)")
    links.expire(9.0)
    assert depth(index) == 4
    links.expire(10.0)
    assert (depth(index), len(links)) == (2, 2)
    links.expire(20.0)
    assert (depth(index), len(links), index.num_blocks(A)) == (0, 0, 0)


def test_what_the_index_knows_needs_no_link(index: Index) -> None:
    links = Proofs(A, index, ROOT)
    index.apply(A, stored(range(8), [1, 2]))
    assert links.prove(CHAIN[:2], 10.0) == 0
    assert links.prove(CHAIN[:3], 10.0) == 1
    assert (len(links), CHAIN[2] in links, CHAIN[0] in links) == (1, True, False)
    index.apply(A, BlocksRemoved([1]))
    assert depth(index) == 0
    assert links.prove(CHAIN[:1], 10.0) == 1
    assert depth(index) == 3


def test_what_is_proven_speaks_of_no_group(index: Index) -> None:
    """Where the only one of full attention is not the first."""
    links = Proofs(A, index, ROOT)
    links.prove(CHAIN[:2], 10.0)
    index.apply(A, stored(range(4), [1], group_idx=2, spec_kind="full_attention"))
    assert depth(index) == 2


def test_what_is_laid_goes_when_it_is_dropped(index: Index) -> None:
    links = Proofs(A, index, ROOT)
    links.prove(CHAIN[:2], 10.0)
    laid = links.lay(CHAIN[:5])
    assert laid == CHAIN[2:5]
    assert links.drop([*laid, 12345]) == 3  # type: ignore[list-item]
    assert depth(index) == 2


def test_no_offload_tier_will_speak_of_what_was_proven(index: Index) -> None:
    """Names of removed blocks are remembered for such a tier, a bounded number: not these."""
    links = Proofs(A, index, ROOT)
    index.apply(A, stored([8] * 4, [1]))
    index.apply(A, copied([1], "CPU"))
    links.prove(CHAIN[:2], 10.0)
    links.expire(10.0)
    assert index.find(A, CHAIN[0]) is None


def test_behind_a_missing_block_nothing_is_proven(index: Index) -> None:
    links = Proofs(A, index, ROOT)
    links.prove(CHAIN[:5], 10.0)
    other = [*CHAIN[:2], *prompt([9] * 24)[2:]]
    assert links.withdraw(other[2]) == 0
    assert links.withdraw(CHAIN[3]) == 2
    assert (depth(index), links.withdraw(CHAIN[3])) == (3, 0)


def test_they_are_bounded_the_oldest_proof_first(index: Index) -> None:
    links = Proofs(A, index, ROOT, max_links=5)
    links.prove(prompt([7] * 12), 10.0)
    links.prove(CHAIN[:4], 10.0)
    assert (depth(index), len(links), index.num_blocks(A)) == (4, 4, 4)


def test_a_prompt_that_is_proven_again_and_again_is_kept_once(index: Index) -> None:
    links = Proofs(A, index, ROOT)
    for second in range(100):
        links.prove(CHAIN[: 2 + second % 5], 10.0 + second)
    assert repr(links) == "Proofs(6 blocks, 1 proofs)"
    links.expire(108.0)
    assert depth(index) == 6
    links.expire(109.0)
    assert (depth(index), len(links)) == (0, 0)


def test_proofs_that_begin_alike_are_bounded_too(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.index.proofs.MAX_LISTED", 10)
    links = Proofs(A, index, ROOT)
    ends = [prompt([*range(16), *[100 + end] * 4]) for end in range(4)]
    for second, end in enumerate(ends):
        links.prove(end, 10.0 + second)
    assert repr(links) == "Proofs(6 blocks, 2 proofs)"  # what they share is proven by the latest
    assert [index.overlap(end).get(A) for end in ends] == [4, 4, 5, 5]


def test_all_can_go_at_once_or_with_the_index(index: Index) -> None:
    links = Proofs(A, index, ROOT)
    links.prove(CHAIN[:4], 10.0)
    links.drop_all()
    assert (index.num_blocks(A), len(links)) == (0, 0)
    links.prove(CHAIN[:4], 10.0)
    index.reset_worker(A)
    links.clear()
    assert links.prove(CHAIN[:1], 10.0) == 1
    assert index.num_blocks(A) == 1


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("", []), ("x", [(0, 1)]), ("-", []), ("-xx--x", [(1, 3), (5, 6)]), ("xx-", [(0, 2)])],
)
def test_stretches(wanted: str, found: list[tuple[int, int]]) -> None:
    assert stretches([each == "x" for each in wanted]) == found
