"""Benchmark `make bench-policies`: results of policies, in virtual time, on traces and on fleets that are not
as they should be.

Each cell is a whole run of the gateway's router with eight simulated engines (four in the saturated rows)
with a million cached tokens each (`gateway/replay/`). Goodput is requests per second that meet the row's TTFT
and TPOT. Three seeds; a figure is their median, and comparisons are made for each seed. LIMIT takes fewer
requests of each trace, ROWS only those rows. `saturated` is the median of the rows of short answers at 100 to
130 % of a fleet's seats; `ttft_error_p90` is of the default policy's predictions.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from gateway.policies import POLICIES
from gateway.policies.base import Policy
from gateway.replay.bounds import AllKnowing
from gateway.replay.fleet import Restart, Setup, VirtualFleet, pooled_of
from gateway.replay.job import ReplayJob
from gateway.replay.profile import H100_8B, H100_70B, Profile
from gateway.replay.results import Slo, Summary, summarize
from gateway.replay.traces import agent, mooncake
from loadtest.decide import DECIDE_GOALS_US, decide_us
from loadtest.dynamo import DynamoCost
from loadtest.extent import extent
from loadtest.report import Figure, median_of, publish
from loadtest.workloads.groups import groups
from loadtest.workloads.short_answers import BLOCK, rate_of, short_answers
from loadtest.workloads.traces import AGENT, CONVERSATION, bundled_encode, check_traces

NUM_WORKERS, KV_TOKENS = 8, 1_000_000
SEEDS = range(1, int(os.environ.get("SEEDS", extent("1", "1", "3"))) + 1)
LIMIT = int(os.environ.get("LIMIT", extent("40", "1200", "12031")))
ROWS = os.environ.get("ROWS", "")
SATURATED_S = extent(1.0, 20.0, 60.0)
"""Seconds of the saturated rows; speeds and seats are learnt within the first ten."""
SEATS, SATURATED_WORKERS, SHARES = 64, 4, (1.0, 1.15, 1.3)
SATURATED = "saturated"
MAX_ERROR = 0.3

OURS = "expected_ttft"
OTHERS = ("prefix_overlap", "least_load", "round_robin", "dynamo")
"""Policies that the default is compared with; all-knowing and pooled are bounds."""
P99, ERROR = "policy.ttft_p99_over_best", "policy.ttft_error_p90"
COLUMNS = ("hit_rate", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "goodput", "busiest")
MADE: Mapping[str, Callable[[], Policy]] = {
    **POLICIES,
    "dynamo": DynamoCost,
    "all_knowing": AllKnowing,
}

FAST = replace(H100_8B, kv_tokens=KV_TOKENS)
LARGE = replace(H100_70B, kv_tokens=KV_TOKENS)
HALF = replace(
    FAST,
    name="half",
    prefill_tokens_per_s=FAST.prefill_tokens_per_s / 2,
    step_s=FAST.step_s * 2,
    seq_s=FAST.seq_s * 2,
)


@dataclass(frozen=True, slots=True)
class PolicyScenario:
    """Workload and fleet; `jobs` by seed. `p99_goal` of the default policy over the best of the others."""

    name: str
    jobs: Callable[[int], Iterable[ReplayJob]]
    profile: Profile = FAST
    profiles: Sequence[Profile] = ()
    restarts: Sequence[Restart] = ()
    event_delay_s: float = 0.005
    block_size: int = 512
    slo: Slo = Slo(2.0, 0.05)
    p99_goal: float | None = None
    num_workers: int = NUM_WORKERS


def saturated(profile: Profile, share: float, seed: int) -> Iterable[ReplayJob]:
    return short_answers(SATURATED_WORKERS * rate_of(profile, share), SATURATED_S, seed)


def saturated_rows() -> list[PolicyScenario]:
    rows: list[PolicyScenario] = []
    for size, base, slo in (("8b", FAST, Slo(2.0, 0.05)), ("70b", LARGE, Slo(5.0, 0.1))):
        profile = replace(base, max_num_seqs=SEATS)
        for share in SHARES:
            name, jobs = (
                f"{SATURATED}_{share:.0%}_{size}".replace("%", ""),
                partial(saturated, profile, share),
            )
            row = PolicyScenario(name, jobs, profile, block_size=BLOCK, slo=slo, p99_goal=1.0)
            rows.append(replace(row, num_workers=SATURATED_WORKERS))
    return rows


def conversation(speed: float, seed: int) -> Iterable[ReplayJob]:
    return mooncake(CONVERSATION, speed=speed, limit=LIMIT, seed=seed)


def agents(copies: int, speed: float, seed: int) -> Iterable[ReplayJob]:
    num = max(copies * LIMIT // 12031, 1)
    return agent(AGENT, bundled_encode(), copies=num, speed=speed, seed=seed)


def ladder(seed: int) -> Iterable[ReplayJob]:
    return groups((3, 10, 20, 30, 40, 50, 60), 40.0 * LIMIT / 12031, seed)


def rows() -> list[PolicyScenario]:
    half, large = Slo(2.0, 0.1), partial(PolicyScenario, profile=LARGE, slo=Slo(5.0, 0.1))
    twice = partial(conversation, 2.0)
    minutes = [Restart(60.0 * (1 + number), number % NUM_WORKERS, 20.0) for number in range(30)]
    return [
        PolicyScenario("conversation_1x", partial(conversation, 1.0)),
        PolicyScenario("conversation_2x", twice, p99_goal=0.8),
        PolicyScenario("conversation_3x", partial(conversation, 3.0), p99_goal=0.8),
        large("conversation_1x_70b", partial(conversation, 1.0)),
        large("conversation_2x_70b", twice, p99_goal=0.8),
        large("conversation_3x_70b", partial(conversation, 3.0), p99_goal=0.8),
        PolicyScenario("agent", partial(agents, 40, 5.0), block_size=64),
        PolicyScenario("groups_ladder", ladder, block_size=400),
        PolicyScenario("mixed_fleet_2x", twice, profiles=(*[FAST] * 4, *[HALF] * 4), slo=half),
        PolicyScenario("late_events_2x", twice, event_delay_s=2.0),
        PolicyScenario("restarts_2x", twice, restarts=minutes),
        *saturated_rows(),
    ]


def run(row: PolicyScenario, name: str, seed: int) -> Summary:
    setup = Setup(
        row.num_workers,
        row.profile,
        block_size=row.block_size,
        event_delay_s=row.event_delay_s,
        seed=seed,
        policy=MADE.get(name, POLICIES[OURS]),
        profiles=row.profiles,
        restarts=row.restarts,
    )
    fleet = VirtualFleet(pooled_of(setup) if name == "pooled" else setup)
    if isinstance(fleet.router.policy, DynamoCost):
        fleet.router.observers.decided.append(fleet.router.policy.decided)
        fleet.router.observers.answered.append(fleet.router.policy.answered)
    return summarize(name, fleet.run(row.jobs(seed)), row.num_workers, row.slo)


def main() -> None:
    check_traces(CONVERSATION, AGENT)
    figures: list[Figure] = []
    for row in rows():
        if ROWS and row.name not in ROWS.split(","):
            continue
        began = time.monotonic()
        cells = play(row)
        show(row, cells, time.monotonic() - began)
        figures += compare(row, cells)
    figures += medians(figures)
    figures += [decide_us(num, goal) for num, goal in DECIDE_GOALS_US.items()]
    publish("bench_policies", figures)


def play(row: PolicyScenario) -> Mapping[str, Sequence[Summary]]:
    """Play each policy with each seed. Each row has processes of its own, so that its memory is given
    back."""
    names = [OURS, *OTHERS, "all_knowing", "pooled"]
    with ProcessPoolExecutor() as pool:
        asked = {name: [pool.submit(run, row, name, seed) for seed in SEEDS] for name in names}
        return {name: [future.result() for future in futures] for name, futures in asked.items()}


def show(row: PolicyScenario, cells: Mapping[str, Sequence[Summary]], took_s: float) -> None:
    print(f"\n{row.name} ({took_s:.0f} s): median of {len(SEEDS)} seeds (least to most)")
    print(f"  {'':15}" + "".join(f"{column:>24}" for column in COLUMNS))
    for name, some in cells.items():
        values = [[getattr(cell, column) for cell in some] for column in COLUMNS]
        texts = [f"{statistics.median(v):.3f} ({min(v):.3f}-{max(v):.3f})" for v in values]
        print(f"  {name:15}" + "".join(f"{text:>24}" for text in texts), flush=True)


def compare(row: PolicyScenario, cells: Mapping[str, Sequence[Summary]]) -> list[Figure]:
    ours, others = cells[OURS], [cells[name] for name in OTHERS]
    seeds = list(zip(ours, *others, strict=True))
    p99 = [one.ttft_p99_s / min(each.ttft_p99_s for each in rest) for one, *rest in seeds]
    good = [one.goodput / max(each.goodput for each in rest) for one, *rest in seeds]
    figures = [
        median_of(f"{P99}.{row.name}", "x", row.p99_goal, p99),
        median_of(f"policy.goodput_over_best.{row.name}", "x", 1.0, good, is_floor=True),
        median_of(f"{ERROR}.{row.name}", "x", MAX_ERROR, [one.ttft_error_p90 or 0.0 for one in ours]),
    ]
    if row.name.startswith("conversation_1x"):
        bounds = zip(ours, cells["all_knowing"], strict=True)
        over = [one.ttft_mean_s / bound.ttft_mean_s for one, bound in bounds]
        figures += [
            median_of(f"policy.reuse.{row.name}", "share", 0.25, [c.hit_rate for c in ours], is_floor=True),
            median_of(f"policy.ttft_mean_over_all_knowing.{row.name}", "x", 1.1, over),
        ]
    return figures


def medians(figures: Sequence[Figure]) -> list[Figure]:
    """Medians of the saturated rows."""
    found: list[Figure] = []
    for name, goal in ((P99, 0.9), (ERROR, MAX_ERROR)):
        values = [figure.value for figure in figures if figure.name.startswith(f"{name}.{SATURATED}_")]
        if values:
            found.append(median_of(f"{name}.{SATURATED}", "x", goal, values))
    return found


if __name__ == "__main__":
    main()
