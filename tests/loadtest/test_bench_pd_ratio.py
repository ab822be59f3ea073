"""The figure of the advised split: what a run counts."""

import pytest

from gateway.core.worker import Role
from gateway.replay.fleet import Setup
from gateway.replay.profile import H100_70B
from loadtest import bench_pd_ratio
from loadtest.bench_pd_ratio import AdvisedFleet, played
from loadtest.workloads.pd_traffic import BLOCK_TOKENS, CHAT, CODE


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WARM_S", 5.0), ("SECONDS", 25.0), ("MARGIN_S", 5.0), ("NUM_WORKERS", 4)):
        monkeypatch.setattr(bench_pd_ratio, name, value)


def test_run_counts_requests_in_time_and_takes_the_planners_advice() -> None:
    run = played(CODE, 2.0, 2)
    assert 1.0 < run.goodput < 3.0 and 1 <= run.advised <= 3


def test_run_that_cannot_keep_up_ends_in_time_and_counts_few() -> None:
    assert played(CODE, 30.0, 3).goodput < 10.0


def test_planner_sees_what_the_fleet_counts() -> None:
    fleet = AdvisedFleet(Setup(4, H100_70B, 2, "auto", block_size=BLOCK_TOKENS))
    jobs = CHAT.jobs(4.0, 25.0)
    fleet.play(jobs)
    prefill, decode = (fleet.planner.advice("m", role) for role in (Role.PREFILL, Role.DECODE))
    assert prefill is not None and decode is not None and prefill.num_up == decode.num_up == 2
    assert decode.requests_per_s == prefill.requests_per_s > 1.0
    assert decode.mix.output_tokens > 50 and prefill.mix.prompt_tokens > 100
