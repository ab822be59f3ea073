"""Limits of blocks per worker, from the worker's declaration."""

import pytest

from gateway.core.block_limits import (
    GPU_ROOM,
    GPU_SLACK,
    MAX_BLOCKS,
    OFFLOADED_ROOM,
    OFFLOADED_SLACK,
    UNDECLARED_BLOCKS,
    BlockLimits,
    block_limits,
)


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
