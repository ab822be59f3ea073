"""The simulated autoscaler does what an HPA does with one external metric."""

import pytest

from gateway.replay.fleet import Setup
from gateway.replay.job import ReplayJob
from gateway.replay.profile import H100_8B
from gateway.scaling.advice import Advice
from loadtest.autoscaler import COLD_START_S, POLL_S, Autoscaler, replicas
from loadtest.scaled_fleet import ScaledFleet
from loadtest.workloads.mixes import unique


@pytest.mark.parametrize(
    ("current", "value", "wanted"),
    [
        (4, 4.0, 4),
        (4, 5.0, 5),
        (11, 12.0, 11),  # within 10 %
        (10, 9.0, 10),
        (10, 12.0, 12),
        (2, 30.0, 6),  # four more at once
        (20, 90.0, 40),  # twice as many at once
        (4, 0.0, 1),
        (4, 2.0, 2),
        (60, 90.0, 64),  # the upper bound
    ],
)
def test_replicas_are_those_that_an_hpa_asks_for(current: int, value: float, wanted: int) -> None:
    assert replicas(current, value, 64) == wanted


def _jobs(rate: float, seconds: float) -> list[ReplayJob]:
    return list(unique(1, rate=rate, seconds=seconds))


def test_pods_join_after_their_cold_start_and_all_requests_are_answered() -> None:
    fleet = ScaledFleet(Setup(1, H100_8B, block_size=512), 2.0)
    scaler = Autoscaler(fleet, 3, seed=1)
    ups: list[tuple[float, int, int]] = []
    ended: list[ReplayJob] = []

    def look(advice: Advice) -> None:
        scaler.look(advice)
        ups.append((fleet.clock.now, advice.num_up, scaler.num_replicas))

    fleet.on_round, fleet.on_end = look, ended.append
    jobs = _jobs(12.0, 200.0)
    fleet.play(jobs)
    assert len(ended) == len(jobs)
    asked_s = next(now for now, _, num in ups if num > 1)
    joined_s = next(now for now, num, _ in ups if num > 1)
    assert COLD_START_S[0] <= joined_s - asked_s <= COLD_START_S[1] + POLL_S[1]
    assert max(num for _, _, num in ups) <= 3 and scaler.num_events >= 1
    scaler.pay(fleet.clock.now)
    assert fleet.clock.now < scaler.paid_s <= 3 * fleet.clock.now


def test_worker_that_leaves_answers_first_what_it_has() -> None:
    fleet = ScaledFleet(Setup(2, H100_8B, block_size=512), 2.0)
    left: list[int] = []
    ended: list[ReplayJob] = []

    def look(advice: Advice) -> None:
        if not left:
            fleet.leave(next(iter(fleet.fleet)).worker.id)
        left.append(len(fleet.fleet))

    fleet.on_round, fleet.on_end = look, ended.append
    jobs = _jobs(6.0, 60.0)
    fleet.play(jobs)
    assert len(ended) == len(jobs) and all(job.num_attempts == 1 for job in ended)
    assert left[-1] == 1
