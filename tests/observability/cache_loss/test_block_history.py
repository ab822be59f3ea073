import random

import pytest

from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.block_history import (
    FEW_BLOCKS,
    MAX_LIVES,
    PORTION_BLOCKS,
    BlockHistory,
    BlockState,
    CacheLifetimes,
    life_of,
    state_of,
)

W = WorkerId("w:1")


def hold(history: BlockHistory, blocks: list[int], life: int) -> int:
    """Store and return the number of portions."""
    return sum(1 for _ in history.hold(blocks, life)) + 1


def test_a_block_has_its_last_holder_and_state() -> None:
    history = BlockHistory(16)
    assert history.find(5) == 0
    hold(history, [5, 6], 3)
    assert [(state_of(history.find(b)), life_of(history.find(b))) for b in (5, 6)] == [
        (BlockState.HELD, 3)
    ] * 2
    history.lose([6], BlockState.EVICTED)
    history.lose([7], BlockState.RESET)  # unknown until now
    assert (state_of(history.find(6)), life_of(history.find(6))) == (BlockState.EVICTED, 3)
    assert (state_of(history.find(7)), life_of(history.find(7))) == (BlockState.RESET, 0)
    hold(history, [5, 6], 4)
    assert (state_of(history.find(6)), life_of(history.find(6))) == (BlockState.HELD, 4)


def test_held_blocks_after_known_ones_are_added() -> None:
    history = BlockHistory(64)
    hold(history, [1, 2, 3], 1)
    hold(history, [1, 2, 3, 4, 5], 1)
    assert all(life_of(history.find(block)) == 1 for block in (1, 2, 3, 4, 5))


def test_a_full_table_overwrites_and_never_mistakes() -> None:
    history, rng = BlockHistory(1 << 10), random.Random(1)
    blocks = [rng.getrandbits(64) | 1 for _ in range(4000)]
    for life, block in enumerate(blocks, 1):
        hold(history, [block], life)
    known = [(life, block) for life, block in enumerate(blocks, 1) if history.find(block)]
    assert 500 < len(known) <= 1 << 10
    assert all(life_of(history.find(block)) == life for life, block in known)


def test_few_blocks_are_lost_while_there_is_room() -> None:
    history, rng = BlockHistory(1 << 12), random.Random(2)
    blocks = [rng.getrandbits(64) for _ in range(1 << 10)]
    hold(history, blocks, 1)
    assert sum(history.find(block) == 0 for block in blocks) < 60


def test_each_restart_of_a_worker_is_another_life() -> None:
    lives = CacheLifetimes()
    first = lives.of(W)
    assert lives.of(W) == first and not lives.is_over(first)
    lives.end(W)
    lives.end(W)
    assert lives.is_over(first) and lives.worker(first) == W
    assert lives.of(W) != first
    assert lives.is_over(0) and lives.worker(0) is None


def test_old_lives_have_no_name() -> None:
    lives = CacheLifetimes()
    first = lives.of(W)
    for _ in range(MAX_LIVES):
        lives.end(W)
        lives.of(W)
    assert lives.worker(first) is None and lives.is_over(first)


@pytest.mark.parametrize("known", [0, 1, 5, FEW_BLOCKS, 777, 3000])
@pytest.mark.parametrize("first", [0, 5, 700])
def test_the_known_depth_of_a_prompt_is_found(known: int, first: int) -> None:
    history, rng = BlockHistory(1 << 16), random.Random(known)
    blocks = [rng.getrandbits(64) for _ in range(3000)]
    assert hold(history, blocks[:known], 1) == 1 + known // PORTION_BLOCKS
    depth = history.depth(blocks, first)
    lost = [n for n in range(known) if not history.find(blocks[n])]  # overwritten
    assert max(first, known - 3) <= depth <= max(first, known) or len(lost) > 3


def test_a_prompt_is_known_up_to_its_last_known_block() -> None:
    history = BlockHistory(1 << 16)
    hold(history, [40], 1)
    assert history.depth(range(1, 60), 0) == 40


def test_holes_do_not_end_the_search() -> None:
    """Overwrites are random: the border may lie just behind one."""
    rng = random.Random(1)
    blocks = [rng.getrandbits(64) for _ in range(1000)]
    for kept in range(0, 1000, 13):
        history = BlockHistory(1 << 16)
        hold(history, blocks[kept : kept + 1], 1)
        assert history.depth(blocks, 0) in (0, kept + 1)  # where none of the samples was it, it is not found
