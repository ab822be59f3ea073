"""Recordings and traces of fleets in virtual time."""

import json
import random
from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from gateway.core.blocks import hash_blocks, root_hash
from gateway.core.worker import WorkerId
from gateway.observability.recording import Recorded
from gateway.policies.baselines import RoundRobin
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.job import MODEL, HashedPrompt, ReplayJob
from gateway.replay.play import Trace
from gateway.replay.profile import H100_8B
from gateway.replay.traces import read

TRUE_COSTS = replace(
    H100_8B, prefill_tokens_per_s=5000, step_s=0.03, seq_s=0.002, kv_tokens=20_000, overhead_s=0.01
)
BLOCK = 16


def conversations(num: int, seed: int = 1) -> list[ReplayJob]:
    rng, found = random.Random(seed), []
    for number in range(num):
        tokens, at = array("I", [number % 3, *range(500)]), rng.random() * num
        for _ in range(3):
            tokens = tokens + array("I", [rng.randrange(9999) for _ in range(rng.randrange(50, 1500))])
            output = [rng.randrange(9999) for _ in range(rng.randrange(5, 60))]
            found.append(ReplayJob(at, tokens, len(output), output=output, session=f"s{number}"))
            tokens, at = tokens + array("I", output), at + 8
    return sorted(found, key=lambda job: job.at)


def recorded(path: Path, num: int = 15, is_streamed: bool = True) -> list[ReplayJob]:
    """Recording as a gateway writes it, of a fleet in virtual time."""
    fleet = VirtualFleet(Setup(2, TRUE_COSTS, block_size=BLOCK, policy=RoundRobin))
    rows = []
    for job in fleet.run(conversations(num)):
        assert job.worker is not None
        rows.append(
            Recorded(
                job.at,
                "m",
                "round_robin",
                f"http-{job.worker}",
                200,
                "ended",
                job.num_tokens,
                job.e2e_s,
                job.session,
                BLOCK,
                array("Q", hash_blocks(job.tokens(), BLOCK, root_hash(MODEL))).tobytes(),
                output_tokens=job.num_output,
                ttft_s=job.ttft_s if is_streamed else None,
                reported_cached_tokens=job.cached_tokens,
            )
        )
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return read(path, TraceOptions()).jobs


def trace(path: Path, num: int = 40, **fields: float) -> Trace:
    rows = [
        {
            "timestamp": 500 * i,
            "input_length": 2500,
            "output_length": 20,
            "hash_ids": [i % 3, 10 + i % 3, 20 + i, 90, 9],
        }
        for i in range(num)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return Trace(path, **fields)  # type: ignore[arg-type]


def done_job(at: float, ttft_s: float, cached: int, worker: str = "a", num_output: int = 11) -> ReplayJob:
    done = ReplayJob(at, array("I", range(100)), num_output, worker=WorkerId(worker), cached_tokens=cached)
    done.first_s = at + ttft_s
    done.last_s = done.first_s + 0.02 * (num_output - 1)
    return done


def blocks_of(job: ReplayJob) -> list[int]:
    assert isinstance(job.prompt, HashedPrompt)
    return list(job.prompt.hashes)


def seen_jobs(jobs: Iterable[ReplayJob]) -> list[tuple[float, int, int, list[int]]]:
    return [(job.at, job.num_tokens, job.num_output, blocks_of(job)) for job in jobs]
