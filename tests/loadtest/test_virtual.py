"""The fleet in virtual time does what the real one does: everything ends, and caches are hit."""

import random
from array import array
from typing import Any

import pytest

from gateway.policies.disaggregation import MODES
from loadtest.virtual import H100_8B, Job, Setup, VirtualFleet


def jobs(num: int = 60, seed: int = 1) -> list[Job]:
    """Conversations of three turns, each of which goes on from the one before and its answer."""
    rng = random.Random(seed)
    found: list[Job] = []
    for _ in range(num // 3):
        tokens, at = array("I"), rng.random() * 5
        for turn in (1, 2, 3):
            tokens = tokens + array("I", [rng.randrange(8192) for _ in range(rng.randrange(200, 3000))])
            output = [rng.randrange(8192) for _ in range(rng.randrange(1, 120))]
            found.append(Job(at, tokens, len(output), turn, output))
            tokens, at = tokens + array("I", output), at + 10
    return found


def run(**setup: Any) -> tuple[VirtualFleet, list[Job]]:
    fleet = VirtualFleet(Setup(4, H100_8B, block_size=32, **setup))
    return fleet, fleet.run(jobs())


@pytest.mark.parametrize("num_prefill", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_every_request_ends_and_nothing_stays_booked(mode: Any, num_prefill: int) -> None:
    fleet, done = run(mode=mode, num_prefill=num_prefill)
    for job in done:
        assert job.first_s is not None and job.last_s is not None
        assert job.at < job.first_s <= job.last_s
    assert {fleet.router.ledger.load(worker).num_in_flight for worker in fleet.engines} == {0}
    for engine in fleet.engines.values():
        assert engine.scheduler.cache.usage == 0 and not engine.scheduler.has_work
    is_split = any(job.is_split for job in done)
    assert is_split if (mode, num_prefill) == ("always", 2) else mode != "never" or not is_split


def test_next_turns_find_what_the_first_one_left() -> None:
    _, done = run()
    later = [job for job in done if job.turn > 1]
    assert all(job.cached_tokens > 0 for job in later)
    assert all(job.ttft_s < 0.5 for job in later)


def test_two_runs_are_equal() -> None:
    assert [(j.first_s, j.last_s) for j in run()[1]] == [(j.first_s, j.last_s) for j in run()[1]]


def test_what_an_engine_computes_takes_its_time() -> None:
    fleet = VirtualFleet(Setup(1, H100_8B, block_size=32))
    (job,) = fleet.run([Job(0.0, array("I", range(2000)), 11)])
    assert job.ttft_s == pytest.approx(2000 / H100_8B.prefill_tokens_per_s + H100_8B.step_s, rel=0.02)
    assert job.tpot_s == pytest.approx(H100_8B.step_s)
    assert job.meets(2.0, 0.05) and not job.meets(0.05, 0.05)
