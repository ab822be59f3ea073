"""Limits of blocks per worker, from the worker's declaration."""

from functools import partial

import pytest

from gateway.core.block_limits import (
    GPU_ROOM,
    GPU_SLACK,
    MAX_BLOCKS,
    OFFLOADED_ROOM,
    OFFLOADED_SLACK,
    UNDECLARED_BLOCKS,
    BlockLimits,
    FleetBlocks,
    block_limits,
)
from gateway.core.worker import Worker, WorkerId


@pytest.mark.parametrize("declared", [1, 1_000, 60_000])
def test_a_declared_number_of_blocks_is_the_limit_with_slack(declared: int) -> None:
    limits = block_limits(declared)
    assert limits.on_gpu == GPU_SLACK * declared + GPU_ROOM
    assert limits.offloaded == OFFLOADED_SLACK * declared + OFFLOADED_ROOM
    assert limits.exceeded(limits.on_gpu, limits.offloaded) is None


@pytest.mark.parametrize("declared", [None, 0, -5])
def test_a_worker_without_a_declaration_has_a_limit(declared: int | None) -> None:
    limits = block_limits(declared)
    assert limits.on_gpu == GPU_SLACK * UNDECLARED_BLOCKS + GPU_ROOM
    assert "declares no number" in str(limits.exceeded(limits.on_gpu + 1, 0))


def test_an_absurd_declaration_is_bounded() -> None:
    limits = block_limits(10**12)
    assert (limits.on_gpu, limits.offloaded) == (MAX_BLOCKS, MAX_BLOCKS)


def test_operators_can_set_both_limits() -> None:
    assert block_limits(10**12, most=5_000) == BlockLimits(5_000, 5_000, 10**12)
    assert block_limits(1_000, offloaded=77).offloaded == 77


def test_the_reason_names_the_excess_and_the_declaration() -> None:
    limits = block_limits(1_000)
    assert limits.exceeded(limits.on_gpu + 1, 0) == (
        "it stores 12,193 blocks without removing them, beyond 12,192; it declares 1,000 on its GPU"
    )
    assert limits.exceeded(0, limits.offloaded + 1) == (
        "it offloads 32,385 blocks, beyond 32,384; it declares 1,000 on its GPU (offload_blocks raises that)"
    )


def rank(number: int, url: str = "http://liar") -> Worker:
    return Worker(WorkerId(f"{url}#{number}"), url, (), dp_rank=number)


HONEST = rank(0, "http://honest")


def test_workers_together_are_bounded_and_those_of_the_largest_endpoint_are_cut() -> None:
    """An endpoint may declare a thousand ranks, each with as many blocks as a worker may have."""
    blocks = FleetBlocks(1000)
    assert blocks.exceeded(HONEST, 300) is None
    assert [blocks.exceeded(rank(number), 100) for number in range(7)] == [None] * 7
    assert blocks.exceeded(HONEST, 400) is None, "within its share"
    cut = blocks.exceeded(rank(0), 101)
    assert cut is not None and "more than 1,000 blocks" in cut and "its share of 500" in cut
    assert repr(blocks) == "FleetBlocks(1000 of 1000 blocks, 2 endpoints)"
    assert blocks.exceeded(rank(1), 100) is None, "the cut one's blocks are gone"


def test_one_endpoint_has_the_whole_and_workers_that_left_do_not_count() -> None:
    blocks = FleetBlocks(1000)
    assert blocks.exceeded(rank(0), 1000) is None
    assert blocks.exceeded(rank(0), 1001) is not None
    assert blocks.exceeded(rank(1), 1000) is None
    blocks.drop(rank(1).id)
    blocks.drop(rank(1).id)
    assert blocks.exceeded(HONEST, 1000) is None


def test_a_worker_over_its_own_limit_is_not_counted_any_more() -> None:
    blocks = FleetBlocks(1000)
    limits = BlockLimits(600, 600, of_fleet=partial(blocks.exceeded, rank(0)))
    assert limits.exceeded(600, 0) is None
    assert "declares no number" in str(limits.exceeded(601, 0))
    assert "FleetBlocks(0 of" in repr(blocks)
    assert limits.of_others.exceeded(601, 0) is None
    assert "all workers together" in str(limits.exceeded(501, 500))
