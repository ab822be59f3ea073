from collections.abc import Sequence

import pytest

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.edges import MAX_BLOCKS, POSITION_BITS, Edges
from gateway.index.memory import MemoryIndex
from tests.support.recorded_holdings import RecordedHoldings

A, B, C = 1, 2, 4
ALL = A | B | C


def run(*hashes: int) -> list[BlockHash]:
    return [BlockHash(each) for each in hashes]


def numbers(parts: Sequence[tuple[int, int, int]]) -> list[int]:
    return [first + i for first, count, _ in parts for i in range(count)]


def depths(edges: Edges, *hashes: int, workers: int = ALL) -> dict[int, int]:
    found = edges.walk(run(*hashes), workers)
    return {bit: depth for mask, depth in found for bit in (A, B, C) if mask & bit}


def test_run_is_one_edge_and_grows_at_its_end() -> None:
    edges = Edges()
    (part,) = edges.store(A, run(1, 2, 3), None)
    assert part == (0, 3, 0)
    assert edges.store(A, run(4, 5), 2) == [(3, 2, 0)]
    assert (len(edges), edges.num_blocks) == (1, 5)
    assert depths(edges, 1, 2, 3, 4, 5, 6) == {A: 5}
    assert [edges.hash_at(number) for number in range(5)] == [1, 2, 3, 4, 5]


def test_blocks_stored_again_are_found_on_their_edge() -> None:
    edges = Edges()
    edges.store(A, run(1, 2, 3), None)
    assert edges.store(B, run(1, 2), None) == [(0, 2, 0)]
    assert edges.store(B, run(1, 2, 3, 4), None) == [(0, 3, 0b011), (3, 1, 0)]
    assert len(edges) == 1
    assert depths(edges, 1, 2, 3, 4) == {A: 3, B: 4}


def test_branch_from_the_middle_leaves_its_edge_whole() -> None:
    edges = Edges()
    edges.store(A, run(1, 2, 3, 4), None)
    parts = edges.store(B, run(1, 2, 30, 40), None)
    assert [(number >> POSITION_BITS, count) for number, count, _ in parts] == [(0, 2), (1, 2)]
    assert len(edges) == 2
    assert depths(edges, 1, 2, 30, 40, 50) == {A: 2, B: 4}
    assert depths(edges, 1, 2, 3, 4) == {A: 4, B: 2}
    assert depths(edges, 1, 2, 3, 4, workers=B) == {B: 2}
    assert list(edges.along(run(1, 2, 30))) == [(0, 2), (1, 1)]


def test_full_edge_is_followed_by_another() -> None:
    edges = Edges()
    hashes = run(*range(1, 2 * MAX_BLOCKS + 11))
    parts = edges.store(A, hashes, None)
    assert [count for _, count, _ in parts] == [MAX_BLOCKS, MAX_BLOCKS, 10]
    assert edges.walk(hashes, ALL) == [(A, len(hashes))]
    assert [edges.hash_at(number) for number in numbers(parts)] == hashes


def test_walk_ends_at_a_missing_block_and_released_ends_are_freed() -> None:
    edges = Edges()
    edges.store(A, run(1, 2, 3, 4), None)
    edges.release(A, 1)
    assert depths(edges, 1, 2, 3, 4) == {A: 1}
    edges.release(A, 3)
    assert edges.num_blocks == 3
    edges.release(A, 2)
    assert edges.num_blocks == 1
    edges.release(A, 0)
    assert (len(edges), edges.num_blocks) == (0, 0)
    assert depths(edges, 1) == {}


def test_block_stored_again_joins_the_branch_behind_it() -> None:
    edges = Edges()
    edges.store(A, run(1, 2), None)
    edges.store(B, run(1, 2), None)
    edges.store(A, run(30), 0)
    for bit in (A, B):
        for number in (1, 0):
            edges.release(bit, number)
    assert depths(edges, 1, 30) == {}
    edges.store(C, run(1, 30, 40), None)
    assert depths(edges, 1, 30, 40) == {C: 3}
    edges.store(A, run(1), None)
    assert depths(edges, 1, 30, 40) == {A: 2, C: 3}


def test_branch_is_unreachable_without_the_blocks_before_it() -> None:
    edges = Edges()
    edges.store(A, run(1, 2, 3, 4), None)
    edges.store(B, run(1, 2, 3, 30, 40), None)
    edges.release(A, 3)
    for bit in (A, B):
        edges.release(bit, 2)
    edges.store(A, run(5, 6), 1)
    assert depths(edges, 1, 2, 3, 30, 40) == {A: 2, B: 2}
    assert depths(edges, 1, 2, 5, 6) == {A: 4, B: 2}


def test_numbers_of_edges_are_reused() -> None:
    edges = Edges()
    edges.store(A, run(1), None)
    edges.store(A, run(2), None)
    edges.release(A, 0)
    assert edges.store(A, run(3), None) == [(0, 1, 0)]


def test_forgotten_workers_are_removed_in_slices() -> None:
    edges = Edges()
    for first in range(1, 40, 2):
        edges.store(A, run(first, first + 1), None)
        edges.store(B, run(first), None)
    assert edges.forget(A, 0, 15)
    assert not edges.forget(A, 15, 15)
    assert (len(edges), edges.num_blocks) == (20, 20)
    edges.forget(B | C, 0, 100)
    assert (len(edges), edges.num_blocks) == (0, 0)


def test_grant_adds_single_blocks_of_an_edge() -> None:
    edges = Edges()
    edges.store(A, run(1, 2, 3), None)
    edges.grant(B, 0, 0b101)
    edges.grant(C, 0, 0b111)
    assert depths(edges, 1, 2, 3) == {A: 3, B: 1, C: 3}


def test_full_index_raises_overflow_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.index.edges.MAX_EDGES", 1)
    edges = Edges()
    edges.store(A, run(1), None)
    with pytest.raises(OverflowError, match="the index is full: 1 edges"):
        edges.store(A, run(2), None)


def test_held_by_returns_packed_blocks_of_each_edge() -> None:
    edges = Edges()
    edges.store(A, run(1, 2, 3), None)
    edges.store(B, run(1, 2), None)
    edges.store(B | C, run(9), None)

    def unpacked(workers: int, first: int = 0, num: int = 10) -> list[list[int]]:
        return [memoryview(each).cast("Q").tolist() for each in edges.held_by(workers, first, num)]

    assert unpacked(A) == [[1, 2, 3]]
    assert unpacked(B) == [[1, 2], [9]]
    assert unpacked(B, 1) == [[9]] and unpacked(B, 0, 1) == [[1, 2]]
    assert unpacked(A | B) == [[1, 2, 3], [1, 2], [9]] or unpacked(A | B) == [[1, 2], [1, 2, 3], [9]]
    assert unpacked(8) == []


def test_each_change_of_holdings_is_reported_once() -> None:
    recorded = RecordedHoldings()
    edges = Edges(recorded)
    run = [BlockHash(i) for i in range(100, 110)]
    edges.store(1, run[:4], None)
    edges.store(1, run[:6], None)
    edges.store(1, run, None)
    assert recorded.of("hold") == [(1, run[:4], None), (1, run[4:6], run[3]), (1, run[6:], run[5])]
    [(first, _, _)] = edges.store(1, run, None)
    edges.release(1, first + 2)
    edges.release(1, first + 3)
    edges.release(1, first + 7)
    assert recorded.of("release") == [(1, run[2]), (1, run[3]), (1, run[7])]
    edges.store(1, run[1:], first)
    assert recorded.of("hold") == [(1, run[2:4], run[1]), (1, run[7:8], run[6])]
    edges.hold_known(2, first, 2)
    edges.hold_known(2, first + 1, 2)
    assert recorded.of("hold") == [(2, run[:1], None), (2, run[1:2], run[0]), (2, run[2:3], run[1])]
    edges.grant(4, first >> 8, 0b1010)
    assert recorded.of("hold") == [(4, run[1:2], run[0]), (4, run[3:4], run[2])]


def test_holding_ends_when_its_worker_is_reset_or_dropped() -> None:
    recorded = RecordedHoldings()
    index, worker = MemoryIndex(holdings=recorded), WorkerId("a:1")
    index.add_worker(worker, BlockHash(1), 1)
    index.reset_worker(worker)
    index.drop_worker(worker)
    assert recorded.changes == [
        ("begin", 1, worker, False),
        ("end", 1),
        ("begin", 2, worker, False),
        ("end", 2),
    ]


def test_republish_reports_all_blocks_of_a_worker() -> None:
    """Missing blocks come last, so that blocks behind them are located by the ones before."""
    recorded = RecordedHoldings()
    edges = Edges(recorded)
    stem, branch = run(1, 2, 3, 4), run(8, 9)
    [(first, _, _)] = edges.store(A, stem, None)
    edges.store(A, branch, first + 1)
    edges.store(B, stem[:1], None)
    edges.release(A, first + 2)
    recorded.changes.clear()
    edges.republish(A)
    assert recorded.changes == [("hold", A, stem, None), ("hold", A, branch, 2), ("release", A, 3)]
