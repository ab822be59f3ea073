"""A recording of real engines, replayed with speeds learnt from it, reproduces the measured hit rate."""

import asyncio
from pathlib import Path

from gateway.replay.command import notes_of
from loadtest.bench_replay import calibrated
from loadtest.workloads.talkers import Talkers
from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmWorker

SECONDS = 100.0
MAX_POINTS = 3.0


def test_replayed_hit_rate_equals_the_measured_one(
    vllm_pair: tuple[VllmWorker, VllmWorker], vllm_model: Path, tmp_path: Path
) -> None:
    """Replayed and measured times are printed (`-s`), since they depend on the machine's other load."""
    path = tmp_path / "recording.jsonl"
    workers = [flag for worker in vllm_pair for flag in ("--worker", worker.url)]
    with GatewayProcess(*workers, "--tokenizer", str(vllm_model), "--record", str(path)) as gateway:
        wait_until(lambda: len(gateway.streams()) == 2, timeout_s=30)
        talkers = Talkers(
            gateway.url, seconds=SECONDS, rate=0.25, system_chars=5000, turn_chars=3500, max_turns=4
        )
        asyncio.run(talkers.talk())
    known = calibrated(path)
    print("\n".join(notes_of(known)))
    assert not talkers.failures and known.measured.summary.num_requests >= 30
    hit_rate, *times = known.errors
    assert abs(hit_rate.replayed - hit_rate.measured) * 100 <= MAX_POINTS, hit_rate.text
    assert [error.name for error in times] == ["TTFT p50", "TTFT p90"]
    assert hit_rate.measured > 0.3 and known.profile.prefill_tokens_per_s > 0
