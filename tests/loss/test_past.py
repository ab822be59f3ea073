import random

from gateway.core.worker import WorkerId
from gateway.loss.past import MAX_LIVES, Lives, Past, Way, life_of, way_of

W = WorkerId("w:1")


def test_a_block_is_known_by_who_held_it_last_and_how_it_went() -> None:
    past = Past(16)
    assert past.find(5) == 0
    past.hold([5, 6], 3)
    assert [(way_of(past.find(b)), life_of(past.find(b))) for b in (5, 6)] == [(Way.HELD, 3)] * 2
    past.lose([6], Way.EVICTED)
    past.lose([7], Way.RESET)  # of which nothing was known
    assert (way_of(past.find(6)), life_of(past.find(6))) == (Way.EVICTED, 3)
    assert (way_of(past.find(7)), life_of(past.find(7))) == (Way.RESET, 0)
    past.hold([5, 6], 4)
    assert (way_of(past.find(6)), life_of(past.find(6))) == (Way.HELD, 4)


def test_what_is_held_behind_what_is_known_is_added() -> None:
    past = Past(64)
    past.hold([1, 2, 3], 1)
    past.hold([1, 2, 3, 4, 5], 1)
    assert all(life_of(past.find(block)) == 1 for block in (1, 2, 3, 4, 5))


def test_a_full_table_overwrites_and_never_mistakes() -> None:
    past, rng = Past(1 << 10), random.Random(1)
    blocks = [rng.getrandbits(64) | 1 for _ in range(4000)]
    for life, block in enumerate(blocks, 1):
        past.hold([block], life)
    known = [(life, block) for life, block in enumerate(blocks, 1) if past.find(block)]
    assert 500 < len(known) <= 1 << 10
    assert all(life_of(past.find(block)) == life for life, block in known)


def test_few_blocks_are_lost_where_there_is_room() -> None:
    past, rng = Past(1 << 12), random.Random(2)
    blocks = [rng.getrandbits(64) for _ in range(1 << 10)]
    past.hold(blocks, 1)
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
