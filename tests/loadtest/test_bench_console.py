"""Parts of `make bench-console` that need no browser."""

import os

from gateway.admin.console.pooled_bound import SampledCache
from loadtest.bench_console import SPLIT, cpu_s, exact, hashed, hit_rate, page_figure, split


def test_blocks_are_split_into_smaller_ones_that_differ() -> None:
    assert len(set(split([1, 2]))) == 2 * SPLIT
    assert split([1, 2])[:SPLIT] == split([1])


def test_a_small_sample_is_the_exact_cache() -> None:
    prompts = [[hashed(i) for i in range(start, start + 30)] for start in (0, 10, 0, 200, 5)]
    found = hit_rate(exact(50), prompts)
    assert found == hit_rate(SampledCache(50).touch, prompts) and 0 < found < 1


def test_the_oracle_keeps_the_beginning_of_a_prompt_longest() -> None:
    touch = exact(3)
    touch([1, 2, 3, 4])
    assert touch([1, 2, 3]) == 0


def test_cpu_time_grows() -> None:
    before = cpu_s(os.getpid())
    while cpu_s(os.getpid()) == before:
        hashed(1)


def test_the_page_meets_its_goal() -> None:
    assert page_figure().verdict == "met"
