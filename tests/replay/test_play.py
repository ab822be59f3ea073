import json
from pathlib import Path

import pytest

import gateway.replay.play
from gateway.replay.fleet import Setup
from gateway.replay.play import BOUNDS, POOLED, ReplayRun, Trace, block_size_of, calibrate, play, play_all
from gateway.replay.profile import H100_8B, Profile
from gateway.replay.results import Slo
from tests.replay.test_calibration import recorded


def trace(path: Path, **fields: float) -> Trace:
    rows = [
        {
            "timestamp": 500 * i,
            "input_length": 2500,
            "output_length": 20,
            "hash_ids": [i % 3, 10 + i % 3, 20 + i, 90, 9],
        }
        for i in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return Trace(path, **fields)  # type: ignore[arg-type]


def test_each_policy_is_played_on_the_same_requests(tmp_path: Path) -> None:
    some = trace(tmp_path / "t.jsonl")
    runs = [ReplayRun(some, name, H100_8B, 4) for name in ("prefix_overlap", "round_robin", *BOUNDS)]
    results = play_all(runs, 1)
    assert [result.summary.policy for result in results] == [run.policy for run in runs]
    overlap, turns, pooled, knowing = (result.summary for result in results)
    assert turns.hit_rate < overlap.hit_rate <= pooled.hit_rate
    assert knowing.ttft_mean_s < turns.ttft_mean_s
    assert not results[0].jobs and len(play(runs[0], keeps_jobs=True).jobs) == 40


@pytest.mark.slow
def test_several_processes_give_the_same_results(tmp_path: Path) -> None:
    some = trace(tmp_path / "t.jsonl", seed=3)
    runs = [ReplayRun(some, name, H100_8B, 4) for name in ("prefix_overlap", POOLED)]
    assert [r.summary for r in play_all(runs, 2)] == [r.summary for r in play_all(runs, 1)]


def test_configured_cache_and_block_sizes_apply(tmp_path: Path) -> None:
    some = trace(tmp_path / "t.jsonl")
    assert block_size_of(some.jobs()) == 512
    large = play(ReplayRun(some, "prefix_overlap", H100_8B, 1, kv_blocks=200)).summary.hit_rate
    small = play(ReplayRun(some, "prefix_overlap", H100_8B, 1, kv_blocks=8)).summary.hit_rate
    fine = play(ReplayRun(some, "prefix_overlap", H100_8B, 1, block_size=16, kv_blocks=6400)).summary.hit_rate
    assert small < large == pytest.approx(fine, abs=0.01)


def test_goodput_depends_on_the_slo(tmp_path: Path) -> None:
    some = trace(tmp_path / "t.jsonl")
    strict = play(ReplayRun(some, "prefix_overlap", H100_8B, 4, slo=Slo(1e-6, 1.0))).summary
    assert (strict.goodput, strict.good) == (0.0, 0.0)
    assert play(ReplayRun(some, "prefix_overlap", H100_8B, 4)).summary.good == 1.0


def test_speeds_are_learnt_from_all_workers_even_of_an_unknown_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt_on: list[int] = []

    def learn(jobs: object, setup: Setup) -> Profile:
        learnt_on.append(setup.num_workers)
        return setup.profile

    monkeypatch.setattr(gateway.replay.play, "learn", learn)
    recorded(tmp_path / "r.jsonl", 8)
    text = (tmp_path / "r.jsonl").read_text()
    for name in ("round_robin", "mine"):
        (tmp_path / "r.jsonl").write_text(text.replace("round_robin", name))
        known = calibrate(ReplayRun(Trace(tmp_path / "r.jsonl"), "round_robin", H100_8B, 0), None)
        assert known is not None and known.policy == name
        assert bool(known.errors) is (name == "round_robin")
    assert learnt_on == [2, 2]
