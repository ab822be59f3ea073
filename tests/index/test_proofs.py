"""Proven blocks, which answers showed to be cached, in an index beside the blocks of events."""

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
    chosen = make()
    chosen.add_worker(A, ROOT, 4)
    return chosen


def depth(index: Index) -> int:
    return index.overlap(CHAIN).get(A, 0)


def test_proven_blocks_count_until_they_expire(index: Index) -> None:
    proofs = Proofs(A, index, ROOT)
    assert proofs.prove(CHAIN[:4], 10.0) == 4
    assert proofs.prove(CHAIN[:2], 20.0) == 0
    assert (depth(index), repr(proofs)) == (4, "Proofs(4 blocks, 2 proofs)")
    proofs.expire(9.0)
    assert depth(index) == 4
    proofs.expire(10.0)
    assert (depth(index), len(proofs)) == (2, 2)
    proofs.expire(20.0)
    assert (depth(index), len(proofs), index.num_blocks(A)) == (0, 0, 0)


def test_blocks_known_to_the_index_need_no_proof(index: Index) -> None:
    proofs = Proofs(A, index, ROOT)
    index.apply(A, stored(range(8), [1, 2]))
    assert proofs.prove(CHAIN[:2], 10.0) == 0
    assert proofs.prove(CHAIN[:3], 10.0) == 1
    assert (len(proofs), CHAIN[2] in proofs, CHAIN[0] in proofs) == (1, True, False)
    index.apply(A, BlocksRemoved([1]))
    assert depth(index) == 0
    assert proofs.prove(CHAIN[:1], 10.0) == 1
    assert depth(index) == 3


def test_proven_blocks_define_no_kv_group(index: Index) -> None:
    """The only group of full attention is not the first one here."""
    proofs = Proofs(A, index, ROOT)
    proofs.prove(CHAIN[:2], 10.0)
    index.apply(A, stored(range(4), [1], group_idx=2, spec_kind="full_attention"))
    assert depth(index) == 2


def test_laid_links_are_removed_when_dropped(index: Index) -> None:
    proofs = Proofs(A, index, ROOT)
    proofs.prove(CHAIN[:2], 10.0)
    links = proofs.lay(CHAIN[:5])
    assert links == CHAIN[2:5]
    assert proofs.drop([*links, 12345]) == 3  # type: ignore[list-item]
    assert depth(index) == 2


def test_expired_proofs_leave_no_engine_hash_for_offload_tiers(index: Index) -> None:
    """Engine hashes of removed blocks are remembered for offload tiers, but not those of proven blocks."""
    proofs = Proofs(A, index, ROOT)
    index.apply(A, stored([8] * 4, [1]))
    index.apply(A, copied([1], "CPU"))
    proofs.prove(CHAIN[:2], 10.0)
    proofs.expire(10.0)
    assert index.find(A, CHAIN[0]) is None


def test_withdrawn_block_withdraws_the_blocks_behind_it(index: Index) -> None:
    proofs = Proofs(A, index, ROOT)
    proofs.prove(CHAIN[:5], 10.0)
    other = [*CHAIN[:2], *prompt([9] * 24)[2:]]
    assert proofs.withdraw(other[2]) == 0
    assert proofs.withdraw(CHAIN[3]) == 2
    assert (depth(index), proofs.withdraw(CHAIN[3])) == (3, 0)


def test_oldest_proofs_are_dropped_beyond_the_limit(index: Index) -> None:
    proofs = Proofs(A, index, ROOT, max_links=5)
    proofs.prove(prompt([7] * 12), 10.0)
    proofs.prove(CHAIN[:4], 10.0)
    assert (depth(index), len(proofs), index.num_blocks(A)) == (4, 4, 4)


def test_prompt_proven_repeatedly_is_kept_once(index: Index) -> None:
    proofs = Proofs(A, index, ROOT)
    for second in range(100):
        proofs.prove(CHAIN[: 2 + second % 5], 10.0 + second)
    assert repr(proofs) == "Proofs(6 blocks, 1 proofs)"
    proofs.expire(108.0)
    assert depth(index) == 6
    proofs.expire(109.0)
    assert (depth(index), len(proofs)) == (0, 0)


def test_number_of_proofs_with_a_shared_prefix_is_bounded(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.index.proofs.MAX_LISTED", 10)
    proofs = Proofs(A, index, ROOT)
    ends = [prompt([*range(16), *[100 + end] * 4]) for end in range(4)]
    for second, end in enumerate(ends):
        proofs.prove(end, 10.0 + second)
    assert repr(proofs) == "Proofs(6 blocks, 2 proofs)"  # the shared prefix is proven by the latest proof
    assert [index.overlap(end).get(A) for end in ends] == [4, 4, 5, 5]


def test_proofs_are_dropped_at_once_or_with_the_index(index: Index) -> None:
    proofs = Proofs(A, index, ROOT)
    proofs.prove(CHAIN[:4], 10.0)
    proofs.drop_all()
    assert (index.num_blocks(A), len(proofs)) == (0, 0)
    proofs.prove(CHAIN[:4], 10.0)
    index.reset_worker(A)
    proofs.clear()
    assert proofs.prove(CHAIN[:1], 10.0) == 1
    assert index.num_blocks(A) == 1


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("", []), ("x", [(0, 1)]), ("-", []), ("-xx--x", [(1, 3), (5, 6)]), ("xx-", [(0, 2)])],
)
def test_stretches_are_ranges_of_wanted_blocks(wanted: str, found: list[tuple[int, int]]) -> None:
    assert stretches([each == "x" for each in wanted]) == found
