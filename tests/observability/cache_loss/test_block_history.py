import random

import pytest

from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.block_history import (
    FEW_BLOCKS,
    MAX_LIVES,
    PORTION_BLOCKS,
    Lives,
    Past,
    Way,
    life_of,
    way_of,
)

W = WorkerId("w:1")


def hold(past: Past, blocks: list[int], life: int) -> int:
    """Returns in how many portions."""
    return sum(1 for _ in past.hold(blocks, life)) + 1


def test_a_block_is_known_by_who_held_it_last_and_how_it_went() -> None:
    past = Past(16)
    assert past.find(5) == 0
    hold(past, [5, 6], 3)
    assert [(way_of(past.find(b)), life_of(past.find(b))) for b in (5, 6)] == [(Way.HELD, 3)] * 2
    past.lose([6], Way.EVICTED)
    past.lose([7], Way.RESET)  # of which nothing was known
    assert (way_of(past.find(6)), life_of(past.find(6))) == (Way.EVICTED, 3)
    assert (way_of(past.find(7)), life_of(past.find(7))) == (Way.RESET, 0)
    hold(past, [5, 6], 4)
    assert (way_of(past.find(6)), life_of(past.find(6))) == (Way.HELD, 4)


def test_what_is_held_behind_what_is_known_is_added() -> None:
    past = Past(64)
    hold(past, [1, 2, 3], 1)
    hold(past, [1, 2, 3, 4, 5], 1)
    assert all(life_of(past.find(block)) == 1 for block in (1, 2, 3, 4, 5))


def test_a_full_table_overwrites_and_never_mistakes() -> None:
    past, rng = Past(1 << 10), random.Random(1)
    blocks = [rng.getrandbits(64) | 1 for _ in range(4000)]
    for life, block in enumerate(blocks, 1):
        hold(past, [block], life)
    known = [(life, block) for life, block in enumerate(blocks, 1) if past.find(block)]
    assert 500 < len(known) <= 1 << 10
    assert all(life_of(past.find(block)) == life for life, block in known)


def test_few_blocks_are_lost_where_there_is_room() -> None:
    past, rng = Past(1 << 12), random.Random(2)
    blocks = [rng.getrandbits(64) for _ in range(1 << 10)]
    hold(past, blocks, 1)
    assert sum(past.find(block) == 0 for block in blocks) < 60


def test_each_restart_of_a_worker_is_another_life() -> None:
    lives = Lives()
    first = lives.of(W)
    assert lives.of(W) == first and not lives.is_over(first)
    lives.end(W)
    lives.end(W)
    assert lives.is_over(first) and lives.worker(first) == W
    assert lives.of(W) != first
    assert lives.is_over(0) and lives.worker(0) is None


def test_lives_long_over_have_no_name() -> None:
    lives = Lives()
    first = lives.of(W)
    for _ in range(MAX_LIVES):
        lives.end(W)
        lives.of(W)
    assert lives.worker(first) is None and lives.is_over(first)


@pytest.mark.parametrize("known", [0, 1, 5, FEW_BLOCKS, 777, 3000])
@pytest.mark.parametrize("first", [0, 5, 700])
def test_how_deep_a_prompt_is_known(known: int, first: int) -> None:
    past, rng = Past(1 << 16), random.Random(known)
    blocks = [rng.getrandbits(64) for _ in range(3000)]
    assert hold(past, blocks[:known], 1) == 1 + known // PORTION_BLOCKS
    depth = past.depth(blocks, first)
    lost = [n for n in range(known) if not past.find(blocks[n])]  # overwritten
    assert max(first, known - 3) <= depth <= max(first, known) or len(lost) > 3


def test_a_prompt_is_known_up_to_the_last_block_that_is() -> None:
    past = Past(1 << 16)
    hold(past, [40], 1)
    assert past.depth(range(1, 60), 0) == 40


def test_holes_on_the_way_are_no_end() -> None:
    """Blocks are overwritten by chance: the border may lie just behind one."""
    rng = random.Random(1)
    blocks = [rng.getrandbits(64) for _ in range(1000)]
    for kept in range(0, 1000, 13):
        past = Past(1 << 16)
        hold(past, blocks[kept : kept + 1], 1)
        assert past.depth(blocks, 0) in (0, kept + 1)  # where none of the samples was it, it is not found
