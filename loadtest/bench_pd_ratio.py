"""Benchmark of `make bench-kube`: is the advised split of workers between prefill and decode the best one? In
virtual time, with simulated engines with the figures of H100s (`gateway/replay`).

Three mixes of traffic (`workloads/pd_traffic.py`), each at a load that only a good split bears. Each split of
NUM_WORKERS is played, and its goodput counted: requests per second that meet TTFT <= 2 s and ITL <= 50 ms. In
each run the gateway's own planner looks at the same traffic every 5 s and advises a split.

advice.pd_ratio_of_best           goodput of the split that is advised where half of the workers are prefill
                                  workers, relative to the best one's: the worst of the mixes
advice.pd_ratio_of_best_any       the same from the worst split to begin with, without a goal: where next to
                                  no answer ends in time, the mix of the requests is not known yet
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context

from gateway.observability.metrics import Metrics
from gateway.replay.exchange import VirtualExchange
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.job import ReplayJob
from gateway.replay.play import few_collections
from gateway.replay.profile import H100_70B
from gateway.scaling.planner import ROUND_S, Planner, PlannerSources
from loadtest.extent import extent
from loadtest.report import Figure, publish
from loadtest.workloads.pd_traffic import BLOCK_TOKENS, CHAT, CODE, REASONING, PdTraffic

NUM_WORKERS = extent(3, 8)
TTFT_S, ITL_S = 2.0, 0.05
WARM_S, SECONDS, MARGIN_S = extent((5.0, 15.0, 5.0), (30.0, 90.0, 10.0))
"""Counted are the requests that arrive between WARM_S and SECONDS; runs end MARGIN_S later."""
LOADS = ((CODE, 15.0), (CHAT, 20.0), (REASONING, 36.0))
"""Requests per second of each mix: what the best split just bears."""


@dataclass(frozen=True, slots=True)
class SplitRun:
    """Outcome of a run: goodput in requests per second, and the advised number of prefill workers."""

    goodput: float
    advised: int


class AdvisedFleet(VirtualFleet):
    """Fleet with a gateway's planner, which looks at its counts in virtual time."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        for member in self.fleet:
            member.worker = replace(member.worker, max_running=setup.profile.max_num_seqs)
        self._metrics = Metrics()
        sources = PlannerSources(
            self.fleet,
            self.router.ledger,
            self._metrics,
            self.index,
            self.router.learning.speed_models,
            dict,
            self.transfer,
        )
        self.planner = Planner(sources, TTFT_S, 300.0, itl_objective_s=ITL_S, clock=lambda: self.clock.now)
        self.clock.at(ROUND_S, self._round)

    def _round(self) -> None:
        if self.clock.now >= SECONDS + MARGIN_S:
            raise _Over
        self.planner.round()
        self.clock.at(self.clock.now + ROUND_S, self._round)

    def began(self, exchange: VirtualExchange) -> None:
        super().began(exchange)
        self._metrics.decided(exchange.decision)

    def play(self, jobs: Sequence[ReplayJob]) -> None:
        """Play the requests that arrive in time, without waiting for those that a bad split leaves."""
        with few_collections(), suppress(_Over):
            self.run(jobs)


class _Over(Exception):
    """The time of a run is over."""


def main() -> None:
    worst, worst_any = [], []
    splits = range(1, NUM_WORKERS)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        waiting = [[pool.submit(played, *mix, num) for num in splits] for mix in LOADS]
        outcomes = [[run.result() for run in runs] for runs in waiting]
    for (traffic, load), runs in zip(LOADS, outcomes, strict=True):
        best = max(*[run.goodput for run in runs], 1e-9)
        ratios = [runs[run.advised - 1].goodput / best for run in runs]
        worst.append(ratios[NUM_WORKERS // 2 - 1])
        worst_any.append(min(ratios))
        print(f"\n{traffic.name}, {load:g} requests/s: prefill workers, goodput/s, advised, its ratio")
        for num, (run, ratio) in enumerate(zip(runs, ratios, strict=True), 1):
            print(f"  {num:2} {run.goodput:8.2f} {run.advised:4} {ratio:7.3f}")
    publish(
        "bench_pd_ratio",
        [
            _ratio("advice.pd_ratio_of_best", worst, 0.95),
            _ratio("advice.pd_ratio_of_best_any", worst_any, None),
        ],
    )


def played(traffic: PdTraffic, load: float, num_prefill: int) -> SplitRun:
    """Play one mix with one split."""
    fleet = AdvisedFleet(Setup(NUM_WORKERS, H100_70B, num_prefill, "auto", block_size=BLOCK_TOKENS))
    jobs = traffic.jobs(load, SECONDS)
    fleet.play(jobs)
    counted = [job for job in jobs if job.at >= WARM_S]
    (advice,) = fleet.planner.splits()
    assert advice.workers is not None
    return SplitRun(
        sum(job.meets(TTFT_S, ITL_S) for job in counted) / (SECONDS - WARM_S), int(advice.workers.prefill)
    )


def _ratio(name: str, values: Sequence[float], goal: float | None) -> Figure:
    return Figure(name, round(min(values), 3), "x", goal, [round(each, 3) for each in values], is_floor=True)


if __name__ == "__main__":
    main()
