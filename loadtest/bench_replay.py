"""Benchmark `make bench-replay`: the error of a replay. Conversations through a gateway with simulated
engines, all of them processes on real sockets, are recorded; the recording alone is replayed with its own
policy, and compared with the measured figures.

The load lasts SECONDS; the machine's own overhead is in both.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.app import bundled_tokenizer
from gateway.replay.calibration import Error
from gateway.replay.play import Calibrated, ReplayRun, Trace, calibrate
from gateway.replay.profile import H100_8B
from loadtest.extent import extent
from loadtest.fleet import simulated_fleet
from loadtest.report import Figure, publish
from loadtest.workloads.talkers import Talkers

NUM_WORKERS = 3
RATE = extent(4.0, 1.2)
TALK: dict[str, Any] = extent({"max_turns": 2, "max_tokens": 12, "pause_s": 0.2}, {})
"""Options of the conversations, where they are not the defaults."""
MAX_POINTS, MAX_SHARE = 3.0, 0.15
SIM = (
    "--kv-blocks", "900", "--prefill-tokens-per-s", "4000", "--decode-tokens-per-s", "40",
    "--decode-batch-cost", "0.03", "--max-batched-tokens", "2048",
)  # fmt: skip
"""Flags of a worker: slow enough that the machine's own time is a small part, and a cache that has to
evict."""


def main() -> None:
    seconds = float(os.environ.get("SECONDS", extent("5", "120")))
    policy = os.environ.get("POLICY", "expected_ttft")
    with tempfile.TemporaryDirectory() as place:
        path = Path(os.environ.get("RECORDING") or Path(place) / "recording.jsonl")
        num_failed = record(path, seconds, policy)
        known = calibrated(path)
    print(f"{known.measured.summary.num_requests} requests, {num_failed} failed; {known.profile}")
    publish("bench_replay", [figure(error) for error in known.errors])


def record(path: Path, seconds: float, policy: str, sim_flags: Sequence[str] = SIM) -> int:
    """Record a run. Returns the number of failed requests."""
    flags = ["--record", str(path), "--tokenizer", str(bundled_tokenizer()), "--policy", policy]
    with simulated_fleet(NUM_WORKERS, sim_flags, flags) as fleet:
        talkers = Talkers(fleet.gateway_url, seconds=seconds, rate=RATE, **TALK)
        asyncio.run(talkers.talk())
    return len(talkers.failures)


def calibrated(path: Path, max_batched_tokens: int = 2048) -> Calibrated:
    run = ReplayRun(Trace(path), "", H100_8B, 0)
    known = calibrate(run, None)
    assert known is not None, "it is a recording"
    return known


def figure(error: Error) -> Figure:
    if error.name == "hit rate":
        points = round(abs(error.replayed - error.measured) * 100, 2)
        return Figure("replay.error.hit_rate", points, "points", MAX_POINTS, [points])
    share = round(abs(error.share), 3)
    return Figure(f"replay.error.{error.name.lower().replace(' ', '_')}", share, "x", MAX_SHARE, [share])


if __name__ == "__main__":
    main()
