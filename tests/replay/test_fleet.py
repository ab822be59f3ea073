"""Fleet in virtual time: like a real one, every request ends, and caches are hit."""

import random
from array import array
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.policies.baselines import RoundRobin
from gateway.policies.disaggregation import MODES
from gateway.policies.least_load import LeastLoad
from gateway.replay.fleet import Restart, Setup, VirtualFleet, pooled_of
from gateway.replay.job import ReplayJob, worker_of
from gateway.replay.profile import H100_8B

HALF = replace(H100_8B, prefill_tokens_per_s=11_000, step_s=0.016, seq_s=0.000_2)


def jobs(num: int = 60, seed: int = 1) -> list[ReplayJob]:
    """Conversations of three turns, each of which continues the one before and its answer."""
    rng = random.Random(seed)
    found: list[ReplayJob] = []
    for number in range(num // 3):
        tokens, at = array("I"), rng.random() * 5
        for turn in (1, 2, 3):
            tokens = tokens + array("I", [rng.randrange(8192) for _ in range(rng.randrange(200, 3000))])
            output = [rng.randrange(8192) for _ in range(rng.randrange(1, 120))]
            found.append(ReplayJob(at, tokens, len(output), turn, output, f"s{number}"))
            tokens, at = tokens + array("I", output), at + 10
    return found


def run(num_jobs: int = 60, **setup: Any) -> tuple[VirtualFleet, list[ReplayJob]]:
    fleet = VirtualFleet(Setup(4, H100_8B, **{"block_size": 32, **setup}))
    return fleet, fleet.run(jobs(num_jobs))


def check_ended(fleet: VirtualFleet, done: list[ReplayJob]) -> None:
    for job in done:
        assert job.first_s is not None and job.last_s is not None
        assert job.at < job.first_s <= job.last_s
    assert {fleet.router.ledger.load(worker).num_in_flight for worker in fleet.engines} == {0}
    for engine in fleet.engines.values():
        assert engine.scheduler.cache.usage == 0 and not engine.scheduler.has_work


@pytest.mark.parametrize("num_prefill", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_every_request_ends_and_no_booking_remains(mode: Any, num_prefill: int) -> None:
    fleet, done = run(mode=mode, num_prefill=num_prefill)
    check_ended(fleet, done)
    is_split = any(job.is_split for job in done)
    assert is_split if (mode, num_prefill) == ("always", 2) else mode != "never" or not is_split


def test_later_turns_hit_the_cache() -> None:
    _, done = run()
    later = [job for job in done if job.turn > 1]
    assert all(job.cached_tokens > 0 for job in later)
    assert all(job.ttft_s < 0.5 for job in later)


def test_two_runs_are_equal_and_single_steps_change_nothing() -> None:
    first, second, stepped = (
        [(job.first_s, job.last_s, job.cached_tokens) for job in run(glides=glides)[1]]
        for glides in (True, True, False)
    )
    assert first == second == stepped


def test_computing_takes_its_time() -> None:
    fleet = VirtualFleet(Setup(1, H100_8B, block_size=32))
    (job,) = fleet.run([ReplayJob(0.0, array("I", range(2000)), 11)])
    assert job.ttft_s == pytest.approx(2000 / H100_8B.prefill_tokens_per_s + H100_8B.step_s, rel=0.02)
    assert job.tpot_s == pytest.approx(H100_8B.step_s)
    assert job.meets(2.0, 0.05) and not job.meets(0.05, 0.05)


def test_a_request_larger_than_a_cache_does_not_hang() -> None:
    """A prompt would never be admitted, or preempt itself for ever at its last tokens."""
    small = replace(H100_8B, kv_tokens=320)
    some = [ReplayJob(0.0, array("I", range(num)), 200) for num in (400, 320, 300, 40)]
    fleet = VirtualFleet(Setup(2, H100_8B, block_size=32, profiles=[small, H100_8B]))
    done = fleet.run(some)
    check_ended(fleet, done)
    assert [(job.num_tokens, job.num_output) for job in done] == [(300, 20), (40, 200)]
    assert (fleet.num_rejected, fleet.num_truncated) == (2, 1)
    assert pooled_of(fleet.setup).context_tokens == 320


def test_requests_that_wait_for_ever_are_an_error() -> None:
    fleet = VirtualFleet(Setup(1, replace(H100_8B, kv_tokens=320), block_size=32, max_model_len=1000))
    with pytest.raises(ConfigError, match="1 requests wait for cache blocks that are never free"):
        fleet.run([ReplayJob(0.0, array("I", range(400)), 2)])


@pytest.mark.parametrize("policy", [LeastLoad, RoundRobin])
def test_the_given_policy_is_used(policy: Any) -> None:
    fleet, done = run(policy=policy)
    check_ended(fleet, done)
    assert {job.decision.policy for job in done if job.decision} == {policy.name}


def test_workers_may_differ_in_speed() -> None:
    """Workers at half the speed take longer for the same requests."""
    _, done = run(policy=RoundRobin, profiles=[H100_8B, HALF, H100_8B, HALF])
    tpot_s: dict[str, list[float]] = {}
    for job in done:
        assert job.decision is not None
        if job.num_output > 1:
            tpot_s.setdefault(job.decision.worker.id, []).append(job.tpot_s)
    assert max(tpot_s["w0"]) < 0.016 <= min(tpot_s["w1"])


@pytest.mark.parametrize(("mode", "num_prefill"), [("never", 0), ("always", 2)])
@pytest.mark.parametrize("down_s", [0.0, 5.0])
def test_requests_of_a_restarted_worker_are_sent_again(mode: Any, num_prefill: int, down_s: float) -> None:
    restarts = [Restart(0.5 * i, i % 4, down_s) for i in range(1, 20)]
    fleet, done = run(mode=mode, num_prefill=num_prefill, restarts=restarts)
    check_ended(fleet, done)
    assert any(job.num_attempts > 1 for job in done)


def test_a_restart_empties_cache_and_index() -> None:
    """Old events that are still on their way must not bring blocks back."""
    prompt = array("I", range(2000))
    restarts = [Restart(5.0, 0)]
    fleet = VirtualFleet(Setup(1, H100_8B, block_size=32, restarts=restarts, event_delay_s=10.0))
    before, after = fleet.run([ReplayJob(0.0, prompt, 2), ReplayJob(20.0, prompt, 2)])
    assert after.decision is not None and after.decision.overlap_tokens == after.cached_tokens == 0
    assert fleet.index.num_blocks(worker_of(0)) == 62 and before.cached_tokens == 0


def test_a_request_is_retried_while_the_only_worker_restarts() -> None:
    fleet = VirtualFleet(Setup(1, H100_8B, restarts=[Restart(1.0, 0, down_s=3.0)]))
    (job,) = fleet.run([ReplayJob(2.0, array("I", range(100)), 2)])
    assert job.ttft_s == pytest.approx(2.0, abs=0.05)


def test_events_arrive_after_their_delay() -> None:
    """Sent prompts count at once; blocks of ended requests count when their events arrive and not before."""
    prompt = array("I", range(2000))
    fleet = VirtualFleet(Setup(1, H100_8B, block_size=32, event_delay_s=4.0))
    done = fleet.run([ReplayJob(at, prompt, 2) for at in (0.0, 3.0, 6.0)])
    assert [job.decision.overlap_tokens for job in done if job.decision] == [0, 0, 1984]
    assert [job.cached_tokens for job in done] == [0, 1984, 1984]


def test_observers_get_the_usage_of_each_request() -> None:
    heard: list[int | None] = []

    fleet = VirtualFleet(Setup(4, H100_8B, block_size=32))
    fleet.router.observers.answered.append(lambda decision, blocks, usage: heard.append(usage.cached_tokens))
    done = fleet.run(jobs())
    assert sorted(heard) == sorted(job.cached_tokens for job in done)  # type: ignore[type-var]


@pytest.mark.slow
def test_a_thousand_workers_are_possible() -> None:
    fleet = VirtualFleet(Setup(1000, H100_8B, block_size=512))
    done = fleet.run(jobs(30))
    assert len(fleet.engines) == 1000 and all(job.last_s for job in done)


def test_idle_time_costs_no_work() -> None:
    """A trace with a pause of ten years."""
    fleet = VirtualFleet(Setup(2, H100_8B, block_size=32))
    done = fleet.run([ReplayJob(at, array("I", range(100)), 5) for at in (0.0, 3e8)])
    check_ended(fleet, done)
    assert done[1].cached_tokens == 96 and fleet.clock.now < 3e8 + 2
