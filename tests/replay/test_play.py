import io
import json
from itertools import count
from pathlib import Path

import pytest

import gateway.replay.play
from gateway.core.errors import ConfigError
from gateway.replay.fleet import Setup
from gateway.replay.play import (
    BOUNDS,
    POOLED,
    ExcludedRequests,
    ReplayRun,
    Trace,
    block_size_of,
    calibrate,
    play,
    play_all,
)
from gateway.replay.profile import H100_8B, Profile
from gateway.replay.progress import LINE_S, Progress
from gateway.replay.results import Slo
from tests.support.recordings import recorded, trace


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

    def learn(jobs: object, setup: Setup, progress: object) -> Profile:
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


def test_requests_beyond_a_cache_are_refused_or_cut_in_every_row_and_counted(tmp_path: Path) -> None:
    """A cache of 4 blocks holds neither prompt nor answer of the second request, and the third's in part."""
    rows = [(0, 600, 3, [1, 2]), (1, 2048, 3, [1, 2, 3, 4]), (2, 2000, 900, [5, 6, 7, 8]), (3, 0, 9, [])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    for policy in ("round_robin", *BOUNDS):
        result = play(ReplayRun(Trace(path), policy, H100_8B, 2, kv_blocks=4), keeps_jobs=True)
        assert result.excluded == ExcludedRequests(2048, num_empty=1, num_rejected=1, num_truncated=1)
        assert [(job.num_tokens, job.num_output) for job in result.jobs] == [(600, 3), (2000, 48)]
        assert result.block_size == 512


def test_a_cache_that_no_prompt_fits_is_an_error(tmp_path: Path) -> None:
    some = trace(tmp_path / "t.jsonl")
    with pytest.raises(ConfigError, match="no prompt fits the 2,048 tokens of a cache"):
        play(ReplayRun(some, "round_robin", H100_8B, 2, kv_blocks=4))
    with pytest.raises(ConfigError, match="exceeds 67,108,864"):
        play(ReplayRun(some, "round_robin", H100_8B, 2, kv_blocks=1 << 40))


@pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_progress_counts_the_requests_of_all_runs(tmp_path: Path, num_processes: int) -> None:
    some, out, seconds = trace(tmp_path / "t.jsonl", num=400), io.StringIO(), count(0.0, LINE_S)
    runs = [ReplayRun(some, name, H100_8B, 4) for name in ("round_robin", "least_load")]
    play_all(runs, num_processes, Progress(out, lambda: next(seconds)))
    lines = out.getvalue().splitlines()
    assert all(line.endswith("of 2 runs done") for line in lines)
    shares = [int(line.split()[2].strip("%,")) for line in lines]
    assert shares and shares == sorted(shares) and 0 <= shares[0] <= shares[-1] <= 100
