"""The round of advice: every few seconds the gateway's counts become advice for each group.

A request costs nothing: rounds take differences of what is counted anyway. A request that no worker gets is
reported at once (`unserved`), so that an autoscaler hears within milliseconds that a fleet of zero is needed.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from gateway.core.fleet import Fleet, Member
from gateway.core.ledger import Ledger
from gateway.core.speed import TYPICAL, Speed
from gateway.core.worker import Role, WorkerId
from gateway.costs.transfer_speed import TransferSpeed
from gateway.index.base import Index
from gateway.observability.metrics import Histogram, Metrics
from gateway.routing.speed_model import SpeedModels
from gateway.scaling.advice import Advice, GroupState, WorkerState, advise, mean_speed
from gateway.scaling.capacity import Mix, Objectives
from gateway.scaling.cold_start import ColdStart
from gateway.scaling.groups import MAX_GROUPS, GroupKey, ModelNames, key_of
from gateway.scaling.history import KEPT_S, Counts, History
from gateway.scaling.split import SplitAdvice, SplitState, WorkerSplit, advise_split
from gateway.scaling.stabilizer import Stabilizer

log = logging.getLogger("kvgate.scaling")

ROUND_S = 5.0
BURST_S, MINUTE_S = 15.0, 60.0
ACTIVE_S = 60.0
"""A group is active for so long after its last request."""
RUNS_AT_ONCE, SLICES_PER_ROUND = 500, 20
"""Runs of the index that are looked at without a break, and how often in one round."""

MOST_SPREAD = 100.0
"""Bound of the relative variance of prompts: of a few requests it may be anything."""

Queued = Callable[[], Mapping[str, tuple[int, int]]]
"""Requests and prompt tokens that wait in the gateway, by model name."""


@dataclass(slots=True, eq=False)
class _Group:
    history: History = field(default_factory=History)
    stabilizer: Stabilizer = field(default_factory=Stabilizer)
    cold_start: ColdStart = field(default_factory=ColdStart)
    members: list[Member] = field(default_factory=list)
    counts: Counts = Counts()
    """Sums since the last round."""
    mix: Mix | None = None
    speed: Speed = TYPICAL
    active_until_s: float = -1.0
    num_up: int = 0
    joined_s: float = -math.inf
    """Time of the last join."""
    advice: Advice | None = None
    listeners: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlannerSources:
    """Parts of the gateway that a round reads."""

    fleet: Fleet
    ledger: Ledger
    metrics: Metrics
    index: Index
    speeds: SpeedModels
    queued: Queued
    transfer: TransferSpeed = field(default_factory=TransferSpeed)


class Planner:
    """Advice for all groups; `objective_s` is the TTFT to meet, `hold_s` the time before a number falls,
    `itl_objective_s` the ITL to meet.

    `is_alone`: all requests come through this gateway, so that the fleet that it finds at its start is its to
    keep. Several gateways are added up, and would keep the fleet several times."""

    def __init__(
        self,
        sources: PlannerSources,
        objective_s: float,
        hold_s: float,
        *,
        itl_objective_s: float = math.inf,
        is_alone: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._objectives = Objectives(objective_s, itl_objective_s)
        self._hold_s, self._clock = hold_s, clock
        self._is_alone = is_alone
        self._groups: dict[GroupKey, _Group] = {}
        self._splits: dict[str, SplitAdvice] = {}
        self._names = ModelNames()
        self._last: dict[WorkerId, Counts] = {}
        self._own_blocks: dict[WorkerId, int] = {}
        self._counting: dict[WorkerId, int] = {}
        self._next_run = 0

    def __repr__(self) -> str:
        return f"Planner({list(self._groups)})"

    # what others ask ---------------------------------------------------------------------------

    def advices(self) -> list[Advice]:
        """The latest advice for each group, by model and role."""
        found = [group.advice for group in self._groups.values() if group.advice]
        return sorted(found, key=lambda each: (each.model, each.role.value))

    def splits(self) -> list[SplitAdvice]:
        """The latest advice for each model with prefill and decode workers, by model."""
        return sorted(self._splits.values(), key=lambda each: each.model)

    def advice(self, model: str, role: Role) -> Advice | None:
        """The latest advice for the group of a name; None where it has no workers and no requests yet."""
        group = self._asked(model, role)
        return group.advice if group else None

    def is_active(self, model: str, role: Role) -> bool:
        """True if the group's model had requests lately, or has some that wait or run."""
        group = self._asked(model, role)
        return group is not None and self._clock() < group.active_until_s

    def listen(self, model: str, role: Role, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each round, and when a request finds no worker; returns how to stop it."""
        group = self._asked(model, role)
        if group is None:
            return lambda: None
        group.listeners.append(listener)
        return lambda: group.listeners.remove(listener)

    def unserved(self, name: str) -> None:
        """Count a request that got no worker, for every group of its model."""
        for group in self._of(name):
            group.counts = group.counts._replace(unserved=group.counts.unserved + 1)
        self.waiting(name)

    def waiting(self, name: str) -> None:
        """Make every group of a model active: a request needs a worker, and none is up."""
        for group in self._of(name):
            group.active_until_s = self._clock() + ACTIVE_S
            _call(group)

    def expects(self, name: str) -> bool:
        """True if workers for this model may come: some served it before, an autoscaler asked for it, or the
        configuration names it."""
        return self._names.find(name, self._sources.fleet.aliases) is not None

    def until_worker_s(self, name: str) -> float | None:
        """Seconds until a model's next workers are expected, by its last cold starts; None before the
        first."""
        left = [group.cold_start.left_s(self._clock()) for group in self._of(name)]
        return max([each for each in left if each is not None], default=None)

    def configure(self, groups: Collection[tuple[str, Role]]) -> None:
        """Take the models and roles that may have no workers."""
        self._names.configured = frozenset(model for model, _ in groups)
        for model, role in groups:
            self._named(model, role)

    # the round ---------------------------------------------------------------------------------

    def round(self) -> None:
        """Advise all groups."""
        now = self._clock()
        self._collect()
        queued, of_models = self._queued(), self._of_models()
        for key, group in list(self._groups.items()):
            more = of_models[key.model]
            if key.role is Role.PREFILL:  # its requests are those that the decode workers answer
                its = group.counts if group.members else more  # without any, these compute the prompts too
                group.counts = more._replace(prompt_tokens=its.prompt_tokens, output_tokens=0.0)
            elif key.role is Role.DECODE:
                group.counts = group.counts._replace(handed_tokens=more.handed_tokens)
            self._advise(key, group, queued.get(key.model, (0, 0)), more, now)
            _call(group)
        self._advise_splits()

    def count_own_blocks(self) -> bool:
        """Look at some runs of the index for blocks that one worker alone holds. False: all were seen."""
        found, is_more = self._sources.index.exclusive(self._next_run, RUNS_AT_ONCE)
        for worker, num in found.items():
            self._counting[worker] = self._counting.get(worker, 0) + num
        self._next_run += RUNS_AT_ONCE
        if not is_more:
            self._own_blocks, self._counting, self._next_run = self._counting, {}, 0
        return is_more

    def _collect(self) -> None:
        """Assign workers to groups, and add to these what their workers counted since the last round."""
        last, self._last = self._last, {}
        for group in self._groups.values():
            group.members.clear()
        for member in self._sources.fleet:
            key = key_of(member.worker)
            its = self._group(key) if key else None
            if key is None or its is None:
                continue
            self._names.learn(member.worker, key)
            its.members.append(member)
            worker = member.worker.id
            counts = self._last[worker] = self._counted(worker)
            more = counts.minus(last.get(worker, Counts()))
            output = more.requests * member.speed.answer_tokens
            reported = member.reported
            more = more._replace(
                output_tokens=output,
                num_running=reported.num_running,
                num_waiting=reported.num_waiting,
                kv_usage=reported.kv_usage,
            )
            its.counts = its.counts.plus(more)

    def _counted(self, worker: WorkerId) -> Counts:
        """Sums of one worker since it joined."""
        counted = self._sources.metrics.worker(worker)
        in_time, late = split_at(counted.ttft_s, self._objectives.ttft_s)
        booked = self._sources.ledger.here(worker).booked_tokens
        prompt_tokens = self._sources.speeds.num_computed(worker) + booked
        squares = self._sources.speeds.computed_squares(worker)
        return Counts(counted.num_requests, prompt_tokens, 0.0, in_time, late, prompt_squares=squares)

    def _of_models(self) -> dict[str, Counts]:
        """Sums of each model since the last round."""
        found: dict[str, Counts] = {}
        for key, group in self._groups.items():
            counts = group.counts
            if key.role is Role.PREFILL:
                counts = Counts(handed_tokens=counts.prompt_tokens)
            before = found.get(key.model, Counts())
            unserved = max(group.counts.unserved, before.unserved)  # each group of a model has counted it
            found[key.model] = before.plus(counts)._replace(unserved=unserved)
        return found

    def _advise(
        self, key: GroupKey, group: _Group, queued: tuple[int, int], model: Counts, now: float
    ) -> None:
        group.history.add(group.counts, now)
        group.counts = Counts()
        past = group.history.window(KEPT_S)
        group.mix = mix_of(past.counts) or group.mix
        workers = [self._state(member) for member in group.members]
        if workers:
            group.speed = mean_speed(workers, past.counts.num_running_of_cache)
        if queued[0] or model.requests or any(each.num_in_flight for each in workers):
            group.active_until_s = now + ACTIVE_S
        num_up = sum(each.is_open for each in workers)
        if num_up > group.num_up:
            group.joined_s = now
        group.num_up = num_up
        windows = group.history.window(BURST_S), group.history.window(MINUTE_S), past
        is_settled = now - group.joined_s >= MINUTE_S
        state = GroupState(
            key.model, key.role, workers, *windows, group.mix, group.speed, *queued, is_settled
        )
        advice = advise(state, self._objectives)
        needed = max(advice.needed, 1.0) if queued[0] or model.unserved else advice.needed
        num_kept = advice.num_up if self._is_alone else 0
        level = group.stabilizer.update(needed, num_kept, now, self._hold_s, advice.lasting)
        is_active = now < group.active_until_s
        advice = replace(advice, level=level, is_active=is_active, cold_start_s=group.cold_start.seconds)
        group.cold_start.look(advice.num_desired, advice.num_up, now)
        group.advice = advice

    def _advise_splits(self) -> None:
        """Advise each model with requests and workers of both roles, now or before."""
        found: dict[str, SplitAdvice] = {}
        for key, decode in self._groups.items():
            prefill = self._groups.get(GroupKey(key.model, Role.PREFILL))
            if key.role is not Role.DECODE or prefill is None or not (prefill.advice and decode.advice):
                continue  # a group that KEDA asked for during this round is advised in the next one
            if decode.history.window(KEPT_S).counts.requests:
                last = self._splits.get(key.model)
                state = self._split_state(key.model, prefill, decode)
                found[key.model] = advise_split(state, self._objectives, last.workers if last else None)
        self._splits = found

    def _split_state(self, model: str, prefill: _Group, decode: _Group) -> SplitState:
        assert prefill.advice and decode.advice
        counts = decode.history.window(KEPT_S).counts
        prompt_tokens = (counts.prompt_tokens + counts.handed_tokens) / max(counts.requests, 1.0)
        return SplitState(
            model=model,
            num_up=WorkerSplit(prefill.advice.num_up, decode.advice.num_up),
            prefill=prefill.speed,
            decode=decode.speed,
            mix=Mix(prompt_tokens, decode.speed.answer_tokens + 1.0),
            num_requests=counts.requests,
            handoff_s=self._sources.transfer.seconds(round(prompt_tokens)) + decode.speed.start_s,
            is_bound=any(member.worker.is_bound for member in decode.members),
        )

    def _state(self, member: Member) -> WorkerState:
        worker = member.worker
        load = self._sources.ledger.load(worker.id)
        own = None
        if self._own_blocks and worker.block_size and member.stream is not None:
            own = self._own_blocks.get(worker.id, 0) * worker.block_size
        is_open = member.is_open and member.ejected is None
        return WorkerState(worker.id, is_open, member.speed, load.num_in_flight, load.booked_tokens, own)

    def _queued(self) -> Mapping[str, tuple[int, int]]:
        """Requests and tokens that wait in the gateway, by the model of a group."""
        found: dict[str, tuple[int, int]] = {}
        for name, (num, tokens) in self._sources.queued().items():
            if model := self._names.find(name, self._sources.fleet.aliases):
                before = found.get(model, (0, 0))
                found[model] = before[0] + num, before[1] + tokens
        return found

    def _of(self, name: str) -> list[_Group]:
        """The groups of a name's model."""
        model = self._names.find(name, self._sources.fleet.aliases)
        return [group for key, group in self._groups.items() if key.model == model]

    def _asked(self, name: str, role: Role) -> _Group | None:
        """The group of a name that an autoscaler asks for."""
        self._names.ask(name)
        return self._named(name, role)

    def _named(self, name: str, role: Role) -> _Group | None:
        """The group of a name, made where there is room."""
        model = self._names.find(name, self._sources.fleet.aliases)
        return self._group(GroupKey(model, role)) if model else None

    def _group(self, key: GroupKey) -> _Group | None:
        group = self._groups.get(key)
        if group is None and len(self._groups) < MAX_GROUPS:
            others = [each.active_until_s for known, each in self._groups.items() if known.model == key.model]
            group = self._groups[key] = _Group(active_until_s=max(others, default=-1.0))
        return group


def mix_of(counts: Counts) -> Mix | None:
    """The mean request of some traffic; None without requests."""
    num = counts.requests
    if not num:
        return None
    prompt_tokens = counts.prompt_tokens / num
    spread = counts.prompt_squares / num / prompt_tokens**2 - 1.0 if prompt_tokens else 0.0
    return Mix(prompt_tokens, counts.output_tokens / num, min(max(spread, 0.0), MOST_SPREAD))


def split_at(ttft_s: Histogram, objective_s: float) -> tuple[float, float]:
    """First tokens within the objective and after it, evenly spread within the bucket that it cuts."""
    in_time, low, bounds = 0.0, 0.0, [*ttft_s.bounds, math.inf]
    for high, num in zip(bounds, ttft_s.counts, strict=True):
        if high <= objective_s:
            in_time += num
        elif low < objective_s < math.inf and high < math.inf:
            in_time += num * (objective_s - low) / (high - low)
        low = high
    return in_time, sum(ttft_s.counts) - in_time


def _call(group: _Group) -> None:
    for listener in tuple(group.listeners):
        listener()


async def keep_advised(planner: Planner, looked: Callable[[], Awaitable[None]]) -> None:
    """Advise every ROUND_S seconds, and count blocks in slices in between; not before the gateway has
    `looked` for its workers once: a number without them would shrink the fleet."""
    await looked()
    while True:
        await asyncio.sleep(ROUND_S)
        try:
            planner.round()
        except Exception:  # noqa: BLE001  a bug in one round must not end the advice
            log.exception("advice for autoscalers failed; they keep the last one until the next round")
        for _ in range(SLICES_PER_ROUND):
            await asyncio.sleep(0)
            if not planner.count_own_blocks():
                break
