"""Lifecycle of workers: joining, slow start, active, draining, ejected, removed.

    joining ─► slow_start ─► active ─► draining ─► removed
                  ▲          │  ▲       │ undone
                  │ readmit  │  └───────┘
                  └─ ejected ◄┘ fails (discovery/outlier_detection.py)

A worker that rejects requests because it is saturated is well: it is busy for some seconds, and chosen then
only where no other worker can take a request.

Failed requests and probe results come in; the fleet, which decisions read, gets the states. Runs only while
something changes: a healthy fleet costs a decision nothing.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gateway.config.worker_specs import DRAINING, REMOVING
from gateway.core.decision import Decided
from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Fleet, Member
from gateway.core.outcome import UNLOADED
from gateway.core.slow_start import SlowStart
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.outlier_detection import Ejection, EngineProgress, OutlierRules, OutlierState
from gateway.discovery.request_faults import RequestFaults
from gateway.discovery.roster import Roster
from gateway.observability.observers import Observers
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.roster")

MAX_REMOVED = 50
"""Removed endpoints remembered for /admin/workers."""

CallLater = Callable[[float, Callable[[], None]], object]
"""Calls back after some seconds."""


def _call_later(seconds: float, callback: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, callback)


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """Work that a worker still has: requests of all processes of this host, and transfers that other workers
    have yet to fetch from it."""

    in_flight: Callable[[WorkerId], int]
    unstarted_tokens: Callable[[WorkerId], int]
    fetching: Callable[[WorkerId], int]

    def of(self, worker: WorkerId) -> int:
        return self.in_flight(worker) + self.fetching(worker)


@dataclass(slots=True)
class _DrainingEndpoint:
    """Draining endpoint; `is_last`: dropped when nothing is left. `is_derived`: another gateway finds out by
    itself, and is not asked to continue it."""

    why: str
    is_last: bool
    is_derived: bool = False


@dataclass(slots=True)
class RemovedEndpoint:
    url: str
    why: str
    at: float = field(default_factory=time.time)


class Lifecycle:
    def __init__(
        self,
        fleet: Fleet,
        left: RemainingWork,
        *,
        num_answered: Callable[[WorkerId], int],
        observers: Observers,
        on_ejected: Callable[[WorkerId, str], None],
        rules: OutlierRules,
        slow_start_s: float,
        clock: Callable[[], float] = time.monotonic,
        call_later: CallLater = _call_later,
    ) -> None:
        """Create the lifecycle states. `num_answered` counts a worker's successful requests, `on_ejected` is
        called for a worker with requests that should go elsewhere."""
        self._fleet = fleet
        self._remaining = left
        self._num_answered = num_answered
        self._observers = observers
        self._on_ejected = on_ejected
        self._rules = rules
        self._slow_start_s = slow_start_s
        self._clock = clock
        self._began_s = clock()
        self._outliers: dict[WorkerId, OutlierState] = {}
        self._drains: dict[str, _DrainingEndpoint] = {}
        self._slow_starts: dict[WorkerId, SlowStart] = {}
        self._kept: dict[WorkerId, str] = {}
        self._call_later = call_later
        self._busy_until_s: dict[WorkerId, float] = {}
        self._states: dict[WorkerId, tuple[str, float]] = {}
        self._panics: set[str] = set()
        self.faults = RequestFaults(self.failed, self.acquit)
        self.ejections: Counter[tuple[WorkerId, str]] = Counter()
        self.removed: deque[RemovedEndpoint] = deque(maxlen=MAX_REMOVED)
        self.num_removed = 0
        self.on_cold: list[Callable[[Sequence[Worker]], None]] = []  # observers of workers with empty caches
        self._log = RateLimitedLog(log, clock=clock)

    def __repr__(self) -> str:
        return f"Lifecycle(draining={sorted(self._drains)}, slow_starts={sorted(self._slow_starts)})"

    # events of the roster ----------------------------------------------------------------------

    def joined(self, workers: Sequence[Worker]) -> None:
        """Start the lifecycle of workers that joined. Those found when the gateway starts may be warm
        already: they skip slow start."""
        is_new = self._clock() - self._began_s >= self._slow_start_s
        for worker in workers:
            self._outliers[worker.id] = OutlierState(self._rules)
            if worker.url in self._drains:
                self._fleet.drain(worker.id, True)
            if is_new:
                self._begin_slow_start(worker.id)
        self._notify_cold(workers)

    def restarted(self, workers: Sequence[Worker]) -> None:
        """Begin the slow start of workers with another process that stay in the fleet."""
        for worker in workers:
            self._begin_slow_start(worker.id)
        self._notify_cold(workers)

    def hold(self, worker: WorkerId, seconds: float) -> bool:
        """Send a worker in slow start no requests for so long, while others can have them; False where it is
        in none."""
        if (slow_start := self._slow_starts.get(worker)) is None:
            return False
        slow_start.hold(self._clock() + seconds)
        return True

    def warmed(self, worker: WorkerId, part: float) -> None:
        """End that, and let the worker have as much of its share as the part of the hot prefixes that it
        holds."""
        if slow_start := self._slow_starts.get(worker):
            slow_start.warmed, slow_start.held_until_s = part, slow_start.began_s
            self._look_at_slow_start(worker, self._clock())

    def _notify_cold(self, workers: Sequence[Worker]) -> None:
        for cold in self.on_cold:
            cold(workers)

    def left(self, worker: WorkerId) -> None:
        self._outliers.pop(worker, None)
        self._kept.pop(worker, None)
        self._slow_starts.pop(worker, None)
        self._busy_until_s.pop(worker, None)

    def dropped(self, url: str, workers: Collection[WorkerId]) -> None:
        drain = self._drains.pop(url, None)
        why = drain.why if drain and drain.is_last else "removed"
        self.removed.append(RemovedEndpoint(url, why))
        self.num_removed += 1
        for key in [key for key in self.ejections if key[0] in workers]:
            del self.ejections[key]

    def looked(self, worker: WorkerId, metrics: EngineMetrics | None) -> None:
        """Handle a successful probe: eject, readmit or go on with its slow start."""
        if (outlier := self._outliers.get(worker)) is None:
            return
        now = self._clock()
        if ejection := outlier.looked(self._progress(worker, metrics), now):
            self._eject(worker, outlier, ejection, now)
        if worker in self._kept and outlier.has_answered(self._num_answered(worker)):
            del self._kept[worker]
        if outlier.may_return(now):
            outlier.returned(now)
            self._log.info("worker %s readmitted", worker)
            self._fleet.eject(worker, None)
            self._begin_slow_start(worker)
        if worker in self._slow_starts:
            self._look_at_slow_start(worker, now)

    def failed(self, worker: WorkerId, reason: str, is_silent: bool = False) -> None:
        """Handle a failed request. An unloaded adapter is no failure of the worker; `is_silent`: it accepted
        no connection in time."""
        if reason == UNLOADED or (outlier := self._outliers.get(worker)) is None:
            return
        if ejection := outlier.failed(reason, self._num_answered(worker), is_silent=is_silent):
            self._eject(worker, outlier, ejection, self._clock())

    def acquit(self, worker: WorkerId, num: int) -> None:
        """Take back failures that were charged to a worker; one that was ejected for them may return."""
        if (outlier := self._outliers.get(worker)) and outlier.acquit(num, self._clock()):
            self._log.info(
                "worker %s: its failed requests fail on all workers; readmitted with its next probe",
                worker,
            )

    def busy(self, worker: WorkerId, seconds: float) -> None:
        """Handle a request that a saturated worker rejected: it gets no others for so long."""
        if worker not in self._outliers:
            return
        until_s = self._clock() + seconds
        if (before_s := self._busy_until_s.get(worker)) is None:
            self._fleet.set_busy(worker, True)
            self._call_later(seconds, partial(self._look_if_busy, worker))
            self._log.info(
                "worker %s saturated: it rejects requests; no more are sent for %g s", worker, seconds
            )
        self._busy_until_s[worker] = max(until_s, before_s or 0.0)

    # operators' requests -----------------------------------------------------------------------

    @property
    def draining(self) -> Mapping[str, bool]:
        """URLs of draining endpoints; True for those that are dropped afterwards."""
        return {url: drain.is_last for url, drain in self._drains.items()}

    def why(self, url: str) -> str | None:
        """Return why an endpoint drains; None where it does not."""
        drain = self._drains.get(url)
        return drain.why if drain else None

    @property
    def specs(self) -> list[str]:
        """Draining endpoints as specs for another gateway, see `config.worker_specs.drains_of`."""
        return [
            (REMOVING if drain.is_last else DRAINING) + url
            for url, drain in self._drains.items()
            if not drain.is_derived
        ]

    def drain(
        self,
        url: str,
        workers: Iterable[Worker],
        why: str,
        *,
        is_last: bool = False,
        is_derived: bool = False,
    ) -> bool:
        """Stop sending requests to an endpoint; with `is_last` drop it when nothing is left. False if that
        was so before."""
        before = self._drains.get(url)
        self._drains[url] = _DrainingEndpoint(why, is_last, is_derived)
        for worker in workers:
            self._fleet.drain(worker.id, True)
        if before is None:
            log.info("worker %s draining: %s", url, why)
        return before is None or before.is_last is not is_last

    def resume(self, drains: Iterable[tuple[str, bool]], roster: Roster) -> None:
        """Continue the drains of an earlier gateway."""
        for url, is_last in drains:
            endpoint = roster.find(url)
            self.drain(url, endpoint.workers if endpoint else (), "requested", is_last=is_last)

    def undo(self, url: str, workers: Iterable[Worker]) -> bool:
        """Stop draining an endpoint; False if it was not draining."""
        if self._drains.pop(url, None) is None:
            return False
        for worker in workers:
            self._fleet.drain(worker.id, False)
        log.info("worker %s no longer draining", url)
        return True

    def to_drop(self, workers_of: Callable[[str], Iterable[Worker]]) -> list[str]:
        """Return the URLs of endpoints to be dropped that have nothing left."""
        return [
            url
            for url, drain in self._drains.items()
            if drain.is_last and not any(self._remaining.of(worker.id) for worker in workers_of(url))
        ]

    def num_remaining(self, worker: WorkerId) -> int:
        """Return the number of requests that still need the worker."""
        return self._remaining.of(worker)

    def describe(self, worker: WorkerId) -> dict[str, Any]:
        member, slow_start = self._fleet.get(worker), self._slow_starts.get(worker)
        assert member is not None, "the worker is in the fleet"
        drain = self._drains.get(member.worker.url)
        why = member.ejected or (drain.why if drain else self._kept.get(worker))
        return {
            "state": member.state,
            "reason": why or self._why_so(member),
            "share": round(slow_start.share(self._clock()), 3) if slow_start else 1.0,
            "remaining_requests": self.num_remaining(worker),
            "since": self._states[worker][1] if worker in self._states else None,
            "ejections": {cause: num for (name, cause), num in self.ejections.items() if name == worker},
        }

    def _why_so(self, member: Member) -> str | None:
        """Explain the state of a worker that is neither ejected nor draining."""
        if models := [model for model, late in self._fleet.late.in_panic.items() if member.worker.id in late]:
            return f"gets requests although its probes time out: too few workers of '{models[0]}' are healthy"
        if member.is_late and member.is_up:
            return "up although its probes time out: answers, events or metrics arrive"
        return "saturated: it rejects requests" if member.is_busy else None

    def note_panic(self) -> None:
        """Log the models that have got too few healthy workers, or enough again, since the last call."""
        now, percent = self._fleet.late.in_panic, self._fleet.late.percent
        for model in now.keys() - self._panics:
            text = (
                "model %s: fewer than %g %% of its workers are healthy; %d with late probes get requests too"
            )
            log.warning(text, model, percent, len(now[model]))
        for model in self._panics - now.keys():
            log.info(
                "model %s: enough workers are healthy again; those with late probes get no requests", model
            )
        self._panics = set(now)

    def note_states(self, now: float) -> None:
        """Note the time of each worker's change of state; `now` is Unix time."""
        before = self._states
        self._states = {
            member.worker.id: known if known and known[0] == member.state else (member.state, round(now, 1))
            for member in self._fleet
            for known in [before.get(member.worker.id)]
        }

    # observer of decisions, during slow start -----------------------------------------------------

    def decided(self, decided: Decided) -> None:
        decision = decided.decision
        now, split = self._clock(), decision.split
        for name, slow_start in list(self._slow_starts.items()):
            for candidates, chosen in (
                (decision.candidates, decision.worker),
                (split.candidates if split else (), decision.prefill),
            ):
                among = any(candidate.id == name for candidate in candidates)
                if among or (candidates and self._could(name, decision.model, candidates[0].worker)):
                    is_here = chosen is not None and chosen.id == name
                    slow_start.decided(now, len(candidates) + (not among), is_here=is_here)
            self._look_at_slow_start(name, now)

    def _could(self, name: WorkerId, model: str, like: Worker) -> bool:
        member = self._fleet.get(name)
        return (
            member is not None and member.worker.role is like.role and member.worker.find(model) is not None
        )

    # ---------------------------------------------------------------------------------------------

    def _progress(self, worker: WorkerId, metrics: EngineMetrics | None) -> EngineProgress | None:
        if metrics is None or metrics.step_tokens_total is None:
            return None
        num_reported = (metrics.num_requests_running or 0) + (metrics.num_requests_waiting or 0)
        num_here = num_reported or (1 if self._remaining.unstarted_tokens(worker) else 0)
        return EngineProgress(metrics.step_tokens_total, metrics.kv_cache_usage or 0.0, num_here)

    def _eject(self, worker: WorkerId, outlier: OutlierState, ejection: Ejection, now: float) -> None:
        if why := self._may_not_eject(worker, ejection):
            if worker not in self._kept:
                self._log.warning("worker %s not ejected: %s (%s)", worker, why, ejection.reason)
            self._kept[worker] = f"not ejected: {why} ({ejection.reason})"
            return
        seconds = outlier.eject(ejection, now)
        self._kept.pop(worker, None)
        self._end_slow_start(worker)
        self._fleet.eject(worker, ejection.reason)
        self.ejections[worker, ejection.cause] += 1
        self._log.warning("worker %s ejected for %g s: %s", worker, seconds, ejection.reason)
        if ejection.cause == "stalled":
            self._on_ejected(worker, ejection.reason)

    def _may_not_eject(self, worker: WorkerId, ejection: Ejection) -> str:
        """Return the reason against an ejection, "" without one. Requests that failed are less evidence than
        a stalled engine or a silent one, and eject a bounded share of a model's workers."""
        if model := self._fleet.is_last(worker):
            return f"last worker for '{model}'"
        if ejection.is_bounded:
            for model, members in self._fleet.peers(worker):
                num = sum([member.ejected is not None for member in members])
                if num >= self._rules.bound(len(members)):
                    return f"{num} of {len(members)} workers for '{model}' are ejected already"
        return ""

    def _look_if_busy(self, worker: WorkerId) -> None:
        """End the time without requests, unless another rejection prolonged it."""
        if (until_s := self._busy_until_s.get(worker)) is None:
            return
        if (left_s := until_s - self._clock()) > 0.0:
            self._call_later(left_s, partial(self._look_if_busy, worker))
            return
        del self._busy_until_s[worker]
        self._fleet.set_busy(worker, False)

    def _begin_slow_start(self, worker: WorkerId) -> None:
        if self._slow_start_s <= 0:
            return
        slow_start = self._slow_starts[worker] = SlowStart(self._clock(), self._slow_start_s)
        self._fleet.set_slow_start(worker, slow_start)
        if self.decided not in self._observers.decided:
            self._observers.decided.append(self.decided)

    def _look_at_slow_start(self, worker: WorkerId, now: float) -> None:
        if self._slow_starts[worker].share(now) >= 1.0:
            self._end_slow_start(worker)

    def _end_slow_start(self, worker: WorkerId) -> None:
        if self._slow_starts.pop(worker, None):
            self._fleet.set_slow_start(worker, None)
        if not self._slow_starts and self.decided in self._observers.decided:
            self._observers.decided.remove(self.decided)


LOOK_INTERVAL_S = 0.5
"""Time between two checks of draining workers."""


async def keep_leaving(lifecycle: Lifecycle, roster: Roster, interval_s: float = LOOK_INTERVAL_S) -> None:
    """Note when workers change, and drop the drained endpoints that a drain with `drop` named."""

    def workers_of(url: str) -> Iterable[Worker]:
        endpoint = roster.find(url)
        return endpoint.workers if endpoint else ()

    while True:
        await asyncio.sleep(interval_s)
        lifecycle.note_states(time.time())
        lifecycle.note_panic()
        for url in lifecycle.to_drop(workers_of):
            if not roster.drop(url):
                lifecycle.undo(url, ())  # of another process
