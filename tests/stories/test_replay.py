"""Traffic of a gateway process before simulated engines: recorded, calibrated and replayed."""

import asyncio
from pathlib import Path

import pytest

from gateway.replay.line_reader import Lines
from gateway.replay.recorded_jobs import playable
from loadtest import bench_replay
from loadtest.bench_replay import MAX_POINTS, SIM, calibrated
from loadtest.fleet import simulated_fleet
from loadtest.workloads.talkers import Talkers

pytestmark = pytest.mark.process


def test_replayed_hit_rate_equals_the_measured_one(tmp_path: Path) -> None:
    """Hit rate only: times depend on the machine and have a benchmark of their own."""
    path = tmp_path / "recording.jsonl"
    assert bench_replay.record(path, 20.0, "prefix_overlap") == 0
    known = calibrated(path)
    assert known.policy == "prefix_overlap" and known.num_workers == bench_replay.NUM_WORKERS
    hit_rate, *times = known.errors
    assert hit_rate.measured > 0.3
    assert abs(hit_rate.replayed - hit_rate.measured) * 100 <= MAX_POINTS, hit_rate.text
    assert [error.name for error in times] == ["TTFT p50", "TTFT p90"]
    assert known.profile.kv_tokens == 900 * 16


def test_all_processes_of_a_gateway_record_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    with simulated_fleet(2, SIM, ["--record", str(path), "--processes", "2"]) as fleet:
        talkers = Talkers(fleet.gateway_url, seconds=3.0, rate=8.0, max_turns=2, max_tokens=8, pause_s=0.1)
        asyncio.run(talkers.talk())
    rows = playable(Lines(path))
    assert not talkers.failures and len(rows) > 5
    assert all(row.output_tokens and row.ttft_s for row in rows)  # usage was injected into each request
