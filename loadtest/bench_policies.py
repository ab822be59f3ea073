"""Benchmark `make bench-policies`: results of policies, in virtual time, on the traffic that users have, on
traces and on faulty fleets (`policy_rows.py`).

Each cell is a whole run of the gateway's router with simulated engines (`gateway/replay/`). Goodput is
requests per second that meet the row's TTFT and TPOT. One seed, three with SEEDS=3 or FULL=1; a figure is
their median, and comparisons are made for each seed. LIMIT takes fewer requests of each trace, ROWS only
those rows. SEARCH=1 plays drawn traffic instead (`policy_draws.py`; SEED, and NUM of them) and prints the
worst. `saturated` is the median of the rows of short answers at 100 to 130 % of a fleet's seats;
`ttft_error_p90` is of the default policy's predictions.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from gateway.policies import POLICIES
from gateway.policies.base import Policy
from gateway.replay.fleet import Setup, VirtualFleet, pooled_of
from gateway.replay.placement_bounds import AllKnowing
from gateway.replay.results import Summary, summarize
from loadtest.decide import DECIDE_GOALS_US, decide_us
from loadtest.dynamo import DynamoCost
from loadtest.extent import extent
from loadtest.policy_draws import draw
from loadtest.policy_rows import SATURATED, PolicyScenario, mixed_rows, rows
from loadtest.report import Figure, median_of, publish
from loadtest.workloads.traces import AGENT, CONVERSATION, check_traces

SEEDS = range(1, int(os.environ.get("SEEDS", extent("1", "1", "3"))) + 1)
ROWS = os.environ.get("ROWS", "")
MAX_ERROR, LEAST_GOODPUT, MAX_E2E = 0.3, 0.99, 1.05
LEAST_GOOD = 0.01
"""Share of requests within the objective below which no policy is better than another."""
WORST = 10
LEAST = 1e-9
"""Least denominator of a ratio: answers of one token have a TPOT of 0."""

OURS = "expected_ttft"
OTHERS = ("prefix_overlap", "least_load", "round_robin", "dynamo")
"""Policies that the default is compared with; all-knowing and pooled are bounds."""
GOOD, P99, E2E = "policy.goodput_over_best", "policy.ttft_p99_over_best", "policy.e2e_over_best"
ERROR = "policy.ttft_error_p90"
COLUMNS = (
    "hit_rate",
    "ttft_mean_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "e2e_mean_s",
    "goodput",
    "busiest",
    "num_unused",
)
MADE: Mapping[str, Callable[[], Policy]] = {
    **POLICIES,
    "dynamo": DynamoCost,
    "all_knowing": AllKnowing,
}


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
    if os.environ.get("SEARCH"):
        return search(int(os.environ.get("SEED", "1")), int(os.environ.get("NUM", extent("2", "24", "200"))))
    figures: list[Figure] = []
    for row in asked_rows(ROWS.split(",") if ROWS else []):
        began = time.monotonic()
        cells = play(row, [OURS, *OTHERS, "all_knowing", "pooled"])
        show(row, cells, time.monotonic() - began)
        figures += compare(row, cells)
    figures += medians(figures)
    figures += [decide_us(num, goal) for num, goal in DECIDE_GOALS_US.items()]
    publish("bench_policies", figures)


def asked_rows(names: Sequence[str]) -> list[PolicyScenario]:
    """Rows by name, all without one; `draw-SEED-NUMBER` is drawn."""
    known = {row.name: row for row in [*mixed_rows(), *rows()]}
    drawn = [draw(*map(int, name.split("-")[1:])) for name in names if name.startswith("draw-")]
    return [*drawn, *(row for row in known.values() if not names or row.name in names)]


def search(seed: int, num: int) -> None:
    """Play drawn rows and print those where the default policy does worst beside the best other one."""
    found: list[tuple[float, float, float, str]] = []
    for number in range(1, num + 1):
        row = draw(seed, number)
        figures = {figure.name: figure.value for figure in compare(row, play(row, [OURS, *OTHERS]))}
        good, p99, e2e = (figures[f"{name}.{row.name}"] for name in (GOOD, P99, E2E))
        found.append((good, p99, e2e, row.name))
    print(f"{'goodput':>9}{'TTFT p99':>9}{'E2E':>9}  of the default policy over the best other's")
    for good, p99, e2e, name in sorted(found, key=lambda each: min(each[0], 1 / each[1]))[:WORST]:
        print(f"{good:9.3f}{p99:9.3f}{e2e:9.3f}  ROWS={name} make bench-policies")
    publish(
        "bench_policies_search",
        [
            Figure("policy.search.goodput", min(each[0] for each in found), "x", 0.95, [], is_floor=True),
            Figure("policy.search.ttft_p99", max(each[1] for each in found), "x", 1.2, []),
        ],
    )


def play(row: PolicyScenario, names: Sequence[str]) -> Mapping[str, Sequence[Summary]]:
    """Play each policy with each seed. Each row has processes of its own, so that its memory is given
    back."""
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

    def over(field: str) -> list[float]:
        """Ratios to the least of the others."""
        return [
            getattr(one, field) / max(min(getattr(each, field) for each in rest), LEAST)
            for one, *rest in seeds
        ]

    good = [good_over_best(one, max(rest, key=lambda each: each.goodput)) for one, *rest in seeds]
    figures = [
        median_of(f"{GOOD}.{row.name}", "x", LEAST_GOODPUT, good, is_floor=True),
        median_of(f"{P99}.{row.name}", "x", row.p99_goal, over("ttft_p99_s")),
        median_of(f"policy.ttft_mean_over_best.{row.name}", "x", None, over("ttft_mean_s")),
        median_of(f"policy.tpot_over_best.{row.name}", "x", None, over("tpot_mean_s")),
        median_of(f"{E2E}.{row.name}", "x", MAX_E2E, over("e2e_mean_s")),
        median_of(f"policy.unused.{row.name}", "workers", 0.0, [one.num_unused for one in ours]),
        median_of(f"{ERROR}.{row.name}", "x", None, [one.ttft_error_p90 or 0.0 for one in ours]),
    ]
    if row.name.startswith("conversation_1x"):
        bounds = zip(ours, cells["all_knowing"], strict=True)
        over = [one.ttft_mean_s / bound.ttft_mean_s for one, bound in bounds]
        figures += [
            median_of(f"policy.reuse.{row.name}", "share", 0.25, [c.hit_rate for c in ours], is_floor=True),
            median_of(f"policy.ttft_mean_over_all_knowing.{row.name}", "x", 1.1, over),
        ]
    return figures


def good_over_best(ours: Summary, best: Summary) -> float:
    if ours.good < LEAST_GOOD and best.good < LEAST_GOOD:
        return 1.0
    return ours.goodput / max(best.goodput, LEAST)


def medians(figures: Sequence[Figure]) -> list[Figure]:
    """Medians of the saturated rows, and of all."""
    found: list[Figure] = []
    for name, prefix, group, goal in (
        (P99, f"{SATURATED}_", SATURATED, 0.9),
        (ERROR, f"{SATURATED}_", SATURATED, MAX_ERROR),
        (P99, "", "median", 0.9),
        (GOOD, "", "median", 1.1),
    ):
        values = [figure.value for figure in figures if figure.name.startswith(f"{name}.{prefix}")]
        if values:
            found.append(median_of(f"{name}.{group}", "x", goal, values, is_floor=name == GOOD))
    return found


if __name__ == "__main__":
    main()
