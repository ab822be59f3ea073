from array import array
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.decision import Choice
from gateway.replay.exchange import VirtualExchange
from gateway.replay.fleet import Restart, Setup, VirtualFleet, pooled_of
from gateway.replay.job import ReplayJob, worker_of
from gateway.replay.profile import H100_8B


def test_a_session_goes_to_the_policy() -> None:
    seen = []

    class First:
        name = "first"

        def choose(self, query, candidates, rng):  # type: ignore[no-untyped-def]
            seen.append(query.session)
            return Choice(0, "first")

    VirtualFleet(Setup(2, H100_8B, policy=First)).run(
        [ReplayJob(0.0, array("I", [1, 2]), 1, session="s"), ReplayJob(1.0, array("I", [1, 2]), 1)]
    )
    assert seen == ["s", None]


def test_a_request_of_a_lost_worker_begins_again_at_another() -> None:
    fleet = VirtualFleet(Setup(2, H100_8B))
    job = ReplayJob(0.0, array("I", range(100)), 50)
    exchange = VirtualExchange(fleet, job)
    lost = []

    def lose() -> None:
        assert job.decision is not None and job.first_s is not None
        lost.append(job.decision.worker.id)
        exchange.lose(worker_of(7))  # a worker that has none of its blocks
        assert exchange in fleet.open
        fleet.engines[lost[0]].stop()
        exchange.lose(lost[0])

    fleet.clock.at(0.0, exchange.start)
    fleet.clock.at(0.1, lose)
    fleet.clock.run()
    assert job.decision is not None and job.decision.worker.id not in lost
    assert (job.num_attempts, job.decision.attempt) == (2, 2)
    assert job.first_s is not None and job.first_s > 0.1 and job.last_s is not None
    assert not fleet.open


def test_overhead_and_noise_are_added_to_the_ttft() -> None:
    def ttft_s(**beside: Any) -> list[float]:
        fleet = VirtualFleet(Setup(1, replace(H100_8B, **beside)))
        done = fleet.run([ReplayJob(float(i), array("I", range(100)), 1) for i in range(1, 40)])
        return [job.ttft_s for job in done]

    plain, later = ttft_s(), ttft_s(overhead_s=0.1)
    noisy = ttft_s(overhead_s=0.1, noise_s=(0.0, 0.2, -0.5))
    assert [b - a for a, b in zip(plain, later, strict=True)] == pytest.approx([0.1] * 39)
    steps = [round(b - a, 3) for a, b in zip(plain, noisy, strict=True)]
    assert {step: steps.count(step) for step in steps} == {0.0: 13, 0.1: 13, 0.3: 13}
    assert steps[:3] != steps[3:6] or steps[:3] != steps[6:9]


def test_a_request_sent_to_a_restarting_worker_is_repeated() -> None:
    profile = replace(H100_8B, overhead_s=0.5)
    fleet = VirtualFleet(Setup(2, profile, restarts=[Restart(0.2, 0), Restart(0.3, 1)]))
    (job,) = fleet.run([ReplayJob(0.0, array("I", range(100)), 3)])
    assert job.num_attempts > 1 and job.ttft_s > 0.7
    assert not any(engine.scheduler.has_work for engine in fleet.engines.values())


def test_models_of_one_worker_have_cache_entries_of_their_own() -> None:
    """The gateway predicts what the engine then finds cached."""
    fleet = VirtualFleet(Setup(1, H100_8B, served=[["m", "m1"]]))
    asked = [(0.0, "m"), (1.0, "m1"), (2.0, "m"), (3.0, "m1")]
    done = fleet.run([ReplayJob(at, array("I", range(100)), 1, model=model) for at, model in asked])
    assert [job.cached_tokens for job in done] == [0, 0, 64, 64]
    assert [job.decision.overlap_tokens for job in done if job.decision] == [0, 0, 64, 64]
    pooled = VirtualFleet(pooled_of(Setup(2, H100_8B, served=[["m"], ["m1"]])))
    done = pooled.run([ReplayJob(at, array("I", range(100)), 1, model=model) for at, model in asked])
    assert [job.cached_tokens for job in done] == [0, 0, 64, 64]
