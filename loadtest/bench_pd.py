"""Benchmark `make bench-pd`: is disaggregation worth it, and does the gateway know when? In virtual time,
with simulated engines with the figures of H100s (`gateway/replay`).

Two traces near saturation; goodput is requests per second that meet TTFT <= 2 s and TPOT <= 50 ms. Eight
workers, once with roles and once each doing both, and each mode on both fleets. The cost of giving workers
roles at all is a figure without a goal. Each row is a whole run; LIMIT takes fewer requests.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.policies.disaggregation import MODES, Mode
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.job import ReplayJob
from gateway.replay.profile import H100_8B, H100_70B, Profile
from gateway.replay.traces import agent, mooncake
from loadtest.extent import extent
from loadtest.report import Figure, publish
from loadtest.workloads.traces import AGENT, CONVERSATION, bundled_encode, check_traces

NUM_WORKERS = 8
TTFT_S, TPOT_S = 2.0, 0.05
LIMIT = int(os.environ.get("LIMIT", extent("40", "1600")))


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Results of one run."""

    goodput: float
    ttft_s: float
    turn2_ttft_s: float
    split: float
    cached: float


def main() -> None:
    check_traces(CONVERSATION, AGENT)
    figures: list[Figure] = []
    for name, profile, num_prefill, jobs in (
        ("conversation_8b", H100_8B, 3, lambda: mooncake(CONVERSATION, speed=3.0, limit=LIMIT)),
        ("conversation_70b", H100_70B, 3, lambda: mooncake(CONVERSATION, speed=0.7, limit=LIMIT)),
        ("agent_8b", H100_8B, 2, agents),
        ("agent_70b", H100_70B, 2, agents),
    ):
        figures += compare(name, profile, num_prefill, jobs)
    publish("bench_pd", figures)


def agents() -> Iterable[ReplayJob]:
    return agent(AGENT, bundled_encode(), copies=max(LIMIT // 400, 1))


def compare(
    name: str, profile: Profile, num_prefill: int, jobs: Callable[[], Iterable[ReplayJob]]
) -> list[Figure]:
    roles = {mode: run(profile, num_prefill, mode, jobs()) for mode in MODES.values()}
    both = {mode: run(profile, 0, mode, jobs()) for mode in MODES.values()}
    print(f"\n{name}: goodput/s, TTFT p50, second turns' TTFT p50, split, cached")
    for fleet, rows in (("roles", roles), ("both", both)):
        for mode, row in rows.items():
            print(
                f"  {fleet:6} {mode:8} {row.goodput:7.3f} {row.ttft_s:8.2f} {row.turn2_ttft_s:8.2f}"
                f" {row.split:6.2f} {row.cached:6.3f}"
            )
    turn2 = roles["auto"].turn2_ttft_s / roles["always"].turn2_ttft_s
    given = roles["auto"].goodput / both["auto"].goodput
    return [
        _ratio(f"pd.goodput_auto_over_best.{name}", _auto_over_best(both), 1.0, is_floor=True),
        _ratio(f"pd.goodput_auto_over_best.{name}.roles", _auto_over_best(roles), 1.0, is_floor=True),
        _ratio(f"pd.goodput_roles_over_both.{name}", given, None, is_floor=True),
        _ratio(f"pd.turn2_ttft_auto_over_always.{name}", turn2, 0.5),
    ]


def _auto_over_best(rows: Mapping[Mode, RunFigures]) -> float:
    return rows["auto"].goodput / max(rows["never"].goodput, rows["always"].goodput)


def run(profile: Profile, num_prefill: int, mode: Mode, jobs: Iterable[ReplayJob]) -> RunFigures:
    fleet = VirtualFleet(Setup(NUM_WORKERS, profile, num_prefill, mode, block_size=128))
    done = fleet.run(jobs)
    end_s = max(job.last_s or 0.0 for job in done)
    later = [job.ttft_s for job in done if job.turn > 1]
    if not later:
        sys.exit(f"bench-pd: none of {len(done)} requests is a second turn; a LIMIT of 1000 has some")
    return RunFigures(
        goodput=sum(job.meets(TTFT_S, TPOT_S) for job in done) / end_s,
        ttft_s=statistics.median(job.ttft_s for job in done),
        turn2_ttft_s=statistics.median(later),
        split=_share(done, lambda job: job.is_split),
        cached=sum(job.cached_tokens for job in done) / sum(job.num_tokens for job in done),
    )


def _share(jobs: Sequence[ReplayJob], is_so: Callable[[ReplayJob], bool]) -> float:
    return sum(map(is_so, jobs)) / len(jobs)


def _ratio(name: str, value: float, goal: float | None, *, is_floor: bool = False) -> Figure:
    return Figure(name, round(value, 3), "x", goal, [round(value, 3)], is_floor)


if __name__ == "__main__":
    main()
