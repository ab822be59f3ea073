"""Calibration learns the speeds of a fleet back from its recording."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.policies.baselines import RoundRobin
from gateway.replay.calibration import (
    Error,
    again,
    as_measured,
    errors,
    learn,
    policy_of_recording,
    recorded_of,
)
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.placement_bounds import AsRecorded
from gateway.replay.profile import H100_8B
from tests.support.recordings import BLOCK, TRUE_COSTS, recorded


def setup(**fields: object) -> Setup:
    base = replace(H100_8B, kv_tokens=TRUE_COSTS.kv_tokens)
    return Setup(2, base, block_size=BLOCK, policy=RoundRobin, **fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_learnt_speeds_make_a_replay_accurate(tmp_path: Path) -> None:
    jobs = recorded(tmp_path / "r.jsonl")
    learnt = learn(jobs, setup())
    assert learnt.prefill_tokens_per_s == pytest.approx(TRUE_COSTS.prefill_tokens_per_s, rel=0.1)
    assert learnt.step_s == pytest.approx(TRUE_COSTS.step_s, rel=0.1)
    done = VirtualFleet(replace(setup(), profile=learnt)).run([again(job) for job in jobs])
    hit_rate, *times = errors(jobs, done)
    assert hit_rate.measured > 0.25 and abs(hit_rate.replayed - hit_rate.measured) < 0.005
    assert [error.name for error in times] == ["TTFT p50", "TTFT p90"]
    assert all(abs(error.share) < 0.05 for error in times), times


def test_another_fleet_is_recognized_by_the_error(tmp_path: Path) -> None:
    jobs = recorded(tmp_path / "r.jsonl")
    done = VirtualFleet(replace(setup(), profile=H100_8B)).run([again(job) for job in jobs])
    assert all(error.share < -0.3 for error in errors(jobs, done)[1:])


def test_requests_go_to_their_recorded_workers(tmp_path: Path) -> None:
    jobs = recorded(tmp_path / "r.jsonl")
    done = VirtualFleet(replace(setup(), policy=AsRecorded)).run([again(job) for job in jobs])
    assert [job.worker for job in done] == [job.place for job in jobs]
    assert {job.worker for job in done} == {"w0", "w1"}


def test_measured_values_are_shown(tmp_path: Path) -> None:
    jobs = recorded(tmp_path / "r.jsonl", 10)
    for job, row in zip(jobs, recorded_of(jobs), strict=True):
        shown = as_measured(job)
        assert (shown.ttft_s, shown.e2e_s) == (pytest.approx(row.ttft_s), pytest.approx(row.total_s))
        assert (shown.cached_tokens, shown.worker) == (row.reported_cached_tokens, job.place)
    assert policy_of_recording(jobs) == "round_robin"


@pytest.mark.parametrize(("num", "is_streamed"), [(5, True), (15, False)])
def test_too_few_answers_are_rejected(tmp_path: Path, num: int, is_streamed: bool) -> None:
    jobs = recorded(tmp_path / "r.jsonl", num, is_streamed)
    with pytest.raises(ConfigError, match="too few to learn speeds from"):
        learn(jobs, setup())


def test_unstreamed_answers_are_in_no_error(tmp_path: Path) -> None:
    jobs = recorded(tmp_path / "r.jsonl", 10, is_streamed=False)
    done = VirtualFleet(replace(setup(), profile=TRUE_COSTS)).run([again(job) for job in jobs])
    (hit_rate,) = errors(jobs, done)
    assert hit_rate.name == "hit rate"


def test_an_error_is_shown_in_percent() -> None:
    assert Error("hit rate", 0.5, 0.48).text == "hit rate 0.5000 measured, 0.4800 replayed (-2.0 points)"
    assert Error("TTFT p50", 0.2, 0.22).text == "TTFT p50 0.2000 measured, 0.2200 replayed (+10.0%)"
    assert Error("TTFT p50", 0.0, 0.22).text.endswith("(?)")
