"""A cache of the fleet's size: its sample has the hit rate of the whole, within a point."""

import random
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.console.pooled_bound import (
    MAX_ENTRIES,
    MAX_MODELS,
    RESIZE_S,
    PooledBound,
    PooledCounts,
    SampledCache,
    pooled_bound_of,
)
from gateway.config import config_of
from gateway.core.blocks import BlockHash
from gateway.core.fleet import Fleet, Member
from gateway.core.value import replace
from gateway.core.worker import ServedModel, Worker, WorkerId
from tests.support.fakes import decision

SPREAD = 0x9E3779B97F4A7C15


def hashed(number: int) -> int:
    return (number + 1) * SPREAD % (1 << 64)


class ExactCache:
    """The oracle: LRU of all blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.entries = capacity, OrderedDict[int, None]()

    def touch(self, blocks: Sequence[int]) -> float:
        num_missed = sum(block not in self.entries for block in blocks)
        for block in reversed(blocks):
            self.entries[block] = None
            self.entries.move_to_end(block)
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)
        return num_missed


def conversations(num_requests: int, seed: int) -> Iterator[list[int]]:
    """Turns of conversations behind few common beginnings; most end soon, some go on."""
    rng, number = random.Random(seed), 1000
    talks: list[list[int]] = []
    for _ in range(num_requests):
        if talks and rng.random() < 0.7:
            talk = talks[-1 - min(int(rng.expovariate(0.02)), len(talks) - 1)]
        else:
            talk = [hashed(i) for i in range(rng.choice((4, 20, 40)))]
            talks.append(talk)
        more = rng.randint(5, 60)
        talk += [hashed(number + i) for i in range(more)]
        number += more
        yield list(talk)


def hit_rate(cache: ExactCache | SampledCache, prompts: Sequence[Sequence[int]]) -> float:
    return 1 - sum(map(cache.touch, prompts)) / sum(map(len, prompts))


@pytest.mark.parametrize("capacity", [12_000, 60_000, 150_000])
def test_a_sample_has_the_hit_rate_of_the_whole(capacity: int) -> None:
    prompts = list(conversations(6_000, seed=capacity))
    sampled = SampledCache(capacity)
    assert sampled.rate < 0.2
    assert hit_rate(sampled, prompts) == pytest.approx(hit_rate(ExactCache(capacity), prompts), abs=0.01)
    assert len(sampled) <= MAX_ENTRIES


def test_few_blocks_that_all_prompts_begin_with_do_not_skew_it() -> None:
    common = [hashed(number) for number in range(3)]
    prompts = [[*common, *(hashed(1000 + 3 * i + part) for part in range(3))] for i in range(20_000)]
    assert hit_rate(SampledCache(100_000), prompts) == pytest.approx(0.5, abs=0.01)


@given(st.lists(st.lists(st.integers(0, 30).map(hashed), unique=True), max_size=30), st.integers(1, 40))
def test_a_small_cache_is_exact(prompts: list[list[int]], capacity: int) -> None:
    sampled, exact = SampledCache(capacity), ExactCache(capacity)
    assert sampled.rate == 1.0
    assert [sampled.touch(blocks) for blocks in prompts] == [exact.touch(blocks) for blocks in prompts]
    assert list(sampled._entries) == list(exact.entries)


def test_a_fleet_that_grows_keeps_what_is_still_sampled() -> None:
    cache = SampledCache(1000)
    cache.touch([hashed(i) for i in range(1000)])
    assert len(cache) == 1000
    cache.resize(8 * MAX_ENTRIES)
    assert cache.rate == 1 / 8 and 60 < len(cache) < 200
    cache.resize(80)
    assert cache.rate == 1 / 8 and len(cache) == 10
    cache.resize(0)
    assert len(cache) == 1


def test_a_million_blocks_take_few_megabytes() -> None:
    tracemalloc.start()
    cache = SampledCache(1_000_000)
    for start in range(0, 1_100_000, 10_000):
        cache.touch([hashed(number) for number in range(start, start + 10_000)])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 5e6 and len(cache) > MAX_ENTRIES - 500


def test_counts_give_a_hit_rate_of_all_prompt_tokens() -> None:
    assert PooledCounts(80, 160, 200).hit_rate == 0.4
    assert PooledCounts(170, 160, 200).hit_rate == 0.0
    assert PooledCounts().hit_rate is None


def sized(num_blocks: int, *models: str) -> Worker:
    return Worker(
        WorkerId("w:1"), "http://w:1", tuple(ServedModel(name, name) for name in models),
        block_size=16, num_blocks=num_blocks,
    )  # fmt: skip


class PooledBoundWorld:
    def __init__(self, *models: str) -> None:
        self.worker = sized(100, *models)
        self.now = 0.0
        self.members = [Member(self.worker)]
        self.bound = PooledBound(self.members, lambda: self.now)

    def ask(self, model: str, blocks: Sequence[int]) -> None:
        asked = replace(decision("d"), model=model, worker=self.worker)
        self.bound.seen(asked, [[BlockHash(block) for block in blocks]])


def test_a_prompt_that_comes_again_hits() -> None:
    world = PooledBoundWorld("m")
    for _ in range(2):
        world.ask("m", [hashed(i) for i in range(6)])
    assert world.bound.counts == PooledCounts(6 * 16, 12 * 16, 200)


def test_models_have_caches_of_their_own_up_to_a_number() -> None:
    names = [f"m{i}" for i in range(MAX_MODELS + 1)]
    world = PooledBoundWorld(*names)
    world.ask("none", [1])
    for name in names:
        world.ask(name, [hashed(1)])
    assert world.bound.counts == PooledCounts(MAX_MODELS * 16, MAX_MODELS * 16, MAX_MODELS * 100)


def test_the_cache_follows_the_fleet() -> None:
    world = PooledBoundWorld("m")
    world.ask("m", [hashed(i) for i in range(100)])
    world.members.clear()
    world.now = RESIZE_S
    world.ask("m", [hashed(i) for i in range(100)])
    assert world.bound.counts.missed_tokens == 100 * 16
    world.members.append(Member(sized(10, "m")))
    world.now = 2 * RESIZE_S
    world.ask("m", [hashed(99), *(hashed(i) for i in range(50))])
    assert world.bound.counts.missed_tokens == (100 + 41) * 16


def test_several_processes_have_none() -> None:
    assert pooled_bound_of(config_of(), Fleet({})) is not None
    assert pooled_bound_of(config_of(processes=2), Fleet({})) is None
