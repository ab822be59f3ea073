import random
from array import array
from dataclasses import replace
from typing import Any

import pytest

from engines.sim.cache import CachedSequence
from gateway.policies.baselines import RoundRobin
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.replay.clock import Clock
from gateway.replay.engine import VirtualEngine
from gateway.replay.fleet import Setup, VirtualFleet, pooled_of
from gateway.replay.job import ReplayJob
from gateway.replay.placement_bounds import AllKnowing, Foresight, pooled
from gateway.replay.profile import H100_8B


def test_one_worker_for_all_has_the_capacity_of_all() -> None:
    single = pooled([H100_8B] * 4)
    assert (single.kv_tokens, single.prefill_tokens_per_s) == (1_600_000, 88_000)
    assert single.step_s == pytest.approx(0.007925)
    assert single.seq_s == pytest.approx(H100_8B.seq_s / 4)
    assert pooled([replace(H100_8B, seq_s=0.0)] * 2).step_s == H100_8B.step_s


def jobs(num: int, rate: float, seed: int = 1) -> list[ReplayJob]:
    """Prompts of twelve groups, each with a common beginning."""
    rng, found, at = random.Random(seed), [], 0.0
    for _ in range(num):
        at += rng.expovariate(rate)
        head, tail = rng.randrange(12), rng.randrange(200, 4000)
        tokens = array("I", [head, *range(3000), *[rng.randrange(99_999) for _ in range(tail)]])
        found.append(ReplayJob(at, tokens, rng.randrange(1, 100)))
    return found


def mean_ttft_s(policy: Any, rate: float) -> float:
    done = VirtualFleet(Setup(4, H100_8B, policy=policy)).run(jobs(300, rate))
    return sum(job.ttft_s for job in done) / len(done)


def hit_rate(setup: Setup) -> float:
    done = VirtualFleet(setup).run(jobs(300, 10))
    return sum(job.cached_tokens for job in done) / sum(job.num_tokens for job in done)


@pytest.mark.slow
def test_full_knowledge_of_the_moment_is_hardly_surpassed() -> None:
    """Later requests are unknown: near saturation, chance counts more than what is known."""
    for rate, factor in ((10.0, 1.0), (25.0, 1.1)):
        best = mean_ttft_s(AllKnowing, rate)
        assert best < factor * mean_ttft_s(PrefixOverlap, rate) and best < mean_ttft_s(RoundRobin, rate)


@pytest.mark.slow
def test_no_policy_reuses_more_than_one_shared_cache() -> None:
    setup = Setup(4, replace(H100_8B, kv_tokens=40_000))
    assert hit_rate(pooled_of(setup)) > max(hit_rate(setup), hit_rate(replace(setup, policy=RoundRobin)))


@pytest.mark.parametrize("seed", range(8))
def test_the_foreseen_ttft_is_measured(seed: int) -> None:
    """The bound holds if no other request comes, and blocks last."""
    rng, clock = random.Random(seed), Clock()
    engine = VirtualEngine(H100_8B, 64, clock, lambda _: None)
    foresight, foreseen, seen = Foresight(engine), [], []
    some = jobs(rng.randrange(1, 12), 40.0, seed)

    def last(tokens: "array[int]") -> None:
        foreseen.append(clock.now + foresight.ttft_s(CachedSequence(array("I", tokens))))
        engine.add(tokens, [0] * 5, lambda: seen.append(clock.now))

    for job in some:
        clock.at(job.at, lambda job=job: engine.add(job.tokens(), [0] * job.num_output))  # type: ignore[misc]
    clock.at(some[-1].at + rng.random() / 10, lambda: last(jobs(1, 1.0, seed + 100)[0].tokens()))
    clock.run()
    assert seen == [pytest.approx(foreseen[0])]
