"""Benchmark `make bench-autoscale`: the advice beside the smallest fleets that meet the objective in the
replay, and an autoscaled fleet beside a fixed one. All in virtual time: the gateway's router and planner
before simulated engines.

advice.needed_over_smallest.*   mean of `needed` ÷ the smallest fleet in which nine of ten requests meet the
                                objective, advised in that fleet
autoscale.attainment            share of first tokens within the objective, with the timing of KEDA and an HPA
autoscale.attainment_of_fixed_fleet   the same with a fixed fleet, LARGER × the autoscaled mean, rounded up
autoscale.events_per_hour       changes of the number of replicas
autoscale.mean_workers          pods on average, those that start included

By default the swing of a day passes within an hour, once for each of some seeds, and figures are their means;
FULL=1 plays a whole day (`loadtest/workloads/day.py`).
"""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.replay.fleet import Setup
from gateway.replay.job import ReplayJob
from gateway.replay.play import few_collections
from gateway.replay.profile import H100_8B, H100_70B, Profile
from gateway.replay.traces import agent, mooncake
from gateway.scaling.advice import Advice
from gateway.scaling.capacity import LATE
from loadtest.autoscaler import Autoscaler
from loadtest.extent import extent
from loadtest.policy_rows import L4
from loadtest.report import Figure, publish
from loadtest.scaled_fleet import ScaledFleet
from loadtest.workloads.day import DAY_S, HOUR_S, day
from loadtest.workloads.mixes import chats, unique
from loadtest.workloads.traces import AGENT, CONVERSATION, bundled_encode, check_traces

SEEDS = [int(seed) for seed in os.environ.get("SEEDS", extent("1", "1 2 3", "1")).split()]
OBJECTIVE_S = 2.0
TRACE_S, WARM_S = extent(60.0, 300.0, 1200.0), extent(0.0, 60.0)
"""Seconds that are played of each trace, and those at its begin that do not count."""
DAY_RATE, PLAYED_S = 2.0, extent(60.0, HOUR_S, DAY_S)
FIRST_WORKERS, TRIED_FIRST, MOST_WORKERS = 4, 8, 64
LARGER = 1.25


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests, and the engines that serve them."""

    name: str
    jobs: Callable[[], Sequence[ReplayJob]]
    profile: Profile
    block_size: int = 512
    objective_s: float = OBJECTIVE_S


@dataclass(frozen=True, slots=True)
class Played:
    """Result of one fleet: the share of first tokens in time, and the mean of what was needed."""

    attainment: float
    needed: float


def main() -> None:
    check_traces(CONVERSATION, AGENT)
    figures = [agreement(each) for each in traffics()]
    days = [beside_fixed(seed) for seed in SEEDS]
    fixed = statistics.mean(day.fixed for day in days)
    publish(
        "bench_autoscale",
        [
            *figures,
            _figure("autoscale.attainment", [day.attainment for day in days], "share", fixed, is_floor=True),
            _figure("autoscale.attainment_of_fixed_fleet", [day.fixed for day in days], "share"),
            _figure("autoscale.events_per_hour", [day.events_per_hour for day in days], "events", 10),
            _figure("autoscale.mean_workers", [day.mean_workers for day in days], "workers"),
        ],
    )


def traffics() -> list[Traffic]:
    """The recorded traces, and chats and unique prompts as the policies' benchmark has them."""
    return [
        Traffic("conversation_8b", lambda: mooncake(CONVERSATION), H100_8B),
        Traffic("conversation_3x_8b", lambda: mooncake(CONVERSATION, speed=3.0), H100_8B),
        Traffic("conversation_70b", lambda: mooncake(CONVERSATION), H100_70B, objective_s=5.0),
        Traffic("agent_70b", lambda: agent(AGENT, bundled_encode(), copies=20, speed=2.0), H100_70B, 64),
        Traffic("chats_8b", lambda: list(chats(SEEDS[0], starts=1.5, seconds=TRACE_S)), H100_8B),
        Traffic("unique_l4", lambda: list(unique(SEEDS[0], rate=6.0, seconds=TRACE_S)), L4),
    ]


def agreement(traffic: Traffic) -> Figure:
    """The need that is advised in the smallest fleet that meets the objective, relative to that fleet."""
    jobs = [job for job in traffic.jobs() if job.at < TRACE_S]
    played: dict[int, Played] = {}

    def meets(num_workers: int) -> bool:
        if num_workers not in played:
            played[num_workers] = play(traffic, jobs, num_workers)
        return played[num_workers].attainment >= 1.0 - LATE

    num = smallest(meets, TRIED_FIRST)
    for number, found in sorted(played.items()):
        print(f"{traffic.name}: {number} workers, {found.attainment:.3f} in time, {found.needed:.2f} needed")
    name = f"advice.needed_over_smallest.{traffic.name}"
    return _figure(name, [played[num].needed / num], "x")


def smallest(meets: Callable[[int], bool], start: int, most: int = MOST_WORKERS) -> int:
    """The smallest number that is good enough, where larger ones are too; `most` if none is."""
    num = start
    while num < most and not meets(num):
        num += 1
    while num > 1 and meets(num - 1):
        num -= 1
    return num


def play(traffic: Traffic, jobs: Sequence[ReplayJob], num_workers: int) -> Played:
    setup = Setup(num_workers, traffic.profile, block_size=traffic.block_size)
    fleet, needs, in_time = ScaledFleet(setup, traffic.objective_s), [0.0], [False]

    def took(advice: Advice) -> None:
        if WARM_S <= fleet.clock.now <= TRACE_S:
            needs.append(advice.needed)

    def ended(job: ReplayJob) -> None:
        if job.at >= WARM_S:
            in_time.append(job.ttft_s <= traffic.objective_s)

    fleet.on_round, fleet.on_end = took, ended
    with few_collections():
        fleet.play([replace(job) for job in jobs])
    return Played(sum(in_time) / len(in_time[1:] or in_time), sum(needs) / len(needs[1:] or needs))


@dataclass(frozen=True, slots=True)
class ScaledDay:
    """A day with an autoscaled fleet, and the attainment of a fixed one."""

    attainment: float
    fixed: float
    events_per_hour: float
    mean_workers: float


def beside_fixed(seed: int) -> ScaledDay:
    attainment, scaler = autoscaled(seed)
    mean = scaler.paid_s / PLAYED_S
    num_fixed = math.ceil(LARGER * mean - 1e-9)
    fixed, _ = autoscaled(seed, num_fixed)
    events = scaler.num_events / (PLAYED_S / HOUR_S)
    print(
        f"seed {seed}: {attainment:.3f} in time with {mean:.2f} workers and {events:.1f} changes an hour; "
        f"{fixed:.3f} with {num_fixed} fixed ones"
    )
    return ScaledDay(attainment, fixed, events, mean)


def autoscaled(seed: int, num_fixed: int = 0) -> tuple[float, Autoscaler]:
    """Play the day with an autoscaled fleet, or with a fixed one. Returns the share in time."""
    fleet = ScaledFleet(Setup(num_fixed or FIRST_WORKERS, L4, block_size=512), OBJECTIVE_S)
    scaler = Autoscaler(fleet, MOST_WORKERS, seed)
    in_time = [0, 0]

    def ended(job: ReplayJob) -> None:
        in_time[job.ttft_s <= OBJECTIVE_S] += 1

    fleet.on_end = ended
    if not num_fixed:
        fleet.on_round = scaler.look
    with few_collections():
        fleet.play(day(seed, rate=DAY_RATE, seconds=PLAYED_S))
    scaler.pay(PLAYED_S)
    return in_time[True] / sum(in_time), scaler


def _figure(
    name: str, values: Sequence[float], unit: str, goal: float | None = None, *, is_floor: bool = False
) -> Figure:
    rounds = [round(value, 4) for value in values]
    return Figure(name, round(statistics.mean(values), 4), unit, goal, rounds, is_floor)


if __name__ == "__main__":
    main()
