"""Advice for one group of workers: its state in, what an autoscaler needs out.

demand       of the last minute; of the last 15 s where that is surely more
needed       workers that serve it within the objective, plus those that work off what waits in DRAIN_S; more
             than there are, where these have shown that they are too few
interval     90 %, as the number of requests seen is small; requests are as variable as exponential ones
ttft_s       of a prompt that comes now, at the worker that answers first, behind the gateway's queue
backlog_s    until all workers together have computed the prompts that wait
remove       the worker that costs the fewest tokens of cache to lose
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.speed import TYPICAL, Speed
from gateway.core.value import astuple
from gateway.core.worker import Role, WorkerId
from gateway.scaling.capacity import LATE, Mix, Objectives, is_reachable, sustainable_rate, workers_needed
from gateway.scaling.history import TrafficWindow

DRAIN_S = 30.0
MOST_STEP = 0.25
"""Share of workers more that a late fleet asks for at once, where the model holds it for large enough."""
LEAST_WAITING = 0.1
"""Share of requests that wait in engines, relative to those that run, which is more than chance."""
SIGMAS = 1.645
"""Standard errors on each side of an interval of 90 %."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker of the group. `booked_tokens` wait for computation there; `unique_cached_tokens` are cached
    nowhere else, None where that is not known."""

    id: WorkerId
    is_open: bool
    speed: Speed
    num_in_flight: int = 0
    booked_tokens: int = 0
    unique_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """Workers of one model and role, and their traffic: the last 15 s, minute and five minutes.

    `is_settled`: no worker joined in the last minute. `num_queued` and `queued_tokens` wait in the gateway.
    `mix` is the mean request, None where none was seen; `speed` that of the group's workers, or of its last
    ones."""

    model: str
    role: Role
    workers: Sequence[WorkerState]
    burst: TrafficWindow
    minute: TrafficWindow
    past: TrafficWindow
    mix: Mix | None = None
    speed: Speed = TYPICAL
    num_queued: int = 0
    queued_tokens: int = 0
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class Removal:
    """The cost of losing a worker: tokens that are cached nowhere else; None where that is not known."""

    worker: WorkerId
    unique_cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one group. One worker serves `worker_requests_per_s` of its mean request, `mix`. `needed`,
    `lasting` (without those for what waits),
    `low` and `high` are numbers of workers, of this gateway's traffic; `level` is the steady one. `ttft_s` is
    None where no worker is up, `attainment` where no request came, `cold_start_s` before the first was seen.
    """

    model: str
    role: Role
    num_up: int
    num_queued: int
    requests_per_s: float
    worker_requests_per_s: float
    mix: Mix
    backlog_tokens: int
    backlog_s: float | None
    ttft_s: float | None
    attainment: float | None
    is_reachable: bool
    needed: float
    lasting: float
    low: float
    high: float
    removals: Sequence[Removal] = ()
    level: float = 0.0
    cold_start_s: float | None = None
    is_active: bool = False

    @property
    def num_desired(self) -> int:
        """The advised number of workers."""
        return math.ceil(self.level - 1e-9)

    @property
    def utilization(self) -> float | None:
        """Demand relative to what the workers that are up can do; None where none is."""
        return self.needed / self.num_up if self.num_up else None

    @property
    def remove(self) -> WorkerId | None:
        """The worker to remove first."""
        return self.removals[0].worker if self.removals else None


def advise(state: GroupState, objectives: Objectives) -> Advice:
    """Advice for a group, before it is steadied."""
    workers = [worker for worker in state.workers if worker.is_open]
    speed, mix = state.speed, state.mix or Mix(0.0, 0.0)
    backlog = sum(worker.booked_tokens for worker in workers) + state.queued_tokens
    demand = _demand(state)
    error = _relative_error(state.minute)
    waiting = max(backlog - len(workers) * mix.prompt_tokens, 0.0) / DRAIN_S * speed.token_s
    busy = workers_needed(speed, mix, objectives, demand) if state.mix else 0.0
    lasting = max(busy, _shown(state, len(workers))) if state.mix else 0.0
    needed = max(busy + waiting, lasting) if state.mix else 0.0
    spread = SIGMAS * error * busy
    return Advice(
        model=state.model,
        role=state.role,
        num_up=len(workers),
        num_queued=state.num_queued,
        requests_per_s=demand,
        worker_requests_per_s=_worker_rate(speed, mix, objectives, demand, busy) if state.mix else 0.0,
        mix=mix,
        backlog_tokens=backlog,
        backlog_s=_seconds(backlog, workers),
        ttft_s=_ttft_s(state, workers, mix),
        attainment=state.past.attainment,
        is_reachable=is_reachable(speed, mix, objectives),
        needed=needed,
        lasting=lasting,
        low=max(needed - spread, 0.0),
        high=needed + spread,
        removals=_removals(workers),
    )


def mean_speed(workers: Sequence[WorkerState], most_running: float = math.inf) -> Speed:
    """The mean of some workers' speeds, field by field, with at most so many answers at once."""
    columns = zip(*[astuple(worker.speed) for worker in workers], strict=True)
    means = [sum(column) / len(workers) for column in columns]
    fields = dict(zip(Speed.__match_args__, means, strict=True))
    return Speed(**fields | {"max_running": min(fields["max_running"], most_running)})


def _worker_rate(speed: Speed, mix: Mix, objectives: Objectives, demand: float, num: float) -> float:
    """Requests per second that one worker of as many as are needed serves; of one, without requests."""
    return demand / num if demand else sustainable_rate(speed, mix, objectives)


def _shown(state: GroupState, num_up: int) -> float:
    """Workers that the fleet has shown to need: where requests wait in the engines and first tokens are late,
    more than there are. The model knows no caches that become too small for the traffic."""
    seen = state.burst.counts
    num, waiting = seen.in_time + seen.late, seen.num_waiting / max(seen.num_running, 1.0)
    is_late = seen.late > LATE * num + SIGMAS * math.sqrt(LATE * num)
    if not (is_late and state.is_settled and waiting >= LEAST_WAITING):
        return 0.0
    return num_up * (1.0 + min(waiting, MOST_STEP))


def _demand(state: GroupState) -> float:
    """Requests per second: the last minute's, or the least that the last 15 s show, if that is more."""
    lately = state.burst.requests_per_s * (1.0 - SIGMAS * _relative_error(state.burst))
    return max(state.minute.requests_per_s, lately)


def _relative_error(window: TrafficWindow) -> float:
    """The standard error of a window's work relative to it: of n requests, each as variable as exponential
    ones."""
    num = window.counts.requests + window.counts.unserved
    return math.sqrt(2.0 / num) if num > 0.0 else 0.0


def _seconds(tokens: int, workers: Sequence[WorkerState]) -> float | None:
    per_s = sum(1.0 / worker.speed.token_s for worker in workers)
    return tokens / per_s if per_s else None


def _ttft_s(state: GroupState, workers: Sequence[WorkerState], mix: Mix) -> float | None:
    """Predicted TTFT of a mean request that comes now."""
    queue_s = _seconds(state.queued_tokens, workers)
    if queue_s is None:
        return None
    return queue_s + min(
        each.speed.ttft_s(each.booked_tokens + mix.prompt_tokens, each.num_in_flight)
        + each.speed.wait_s(each.num_in_flight)
        for each in workers
    )


def _removals(workers: Sequence[WorkerState]) -> Sequence[Removal]:
    """Workers by the cost of their loss, the cheapest first; unknown costs come last."""
    found = [Removal(worker.id, worker.unique_cached_tokens) for worker in workers]
    return sorted(
        found, key=lambda each: math.inf if each.unique_cached_tokens is None else each.unique_cached_tokens
    )
