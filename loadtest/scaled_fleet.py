"""Fleet in virtual time with the gateway's own planner, for benchmarks of its advice.

    requests ─► VirtualFleet ─► counts ─► Planner, each ROUND_S ─► `on_round`

Workers join and leave while it runs. Requests are taken one at a time, so that a day of them fits into
memory.
"""

from collections.abc import Callable, Iterable
from functools import partial

from gateway.core.worker import Role, WorkerId
from gateway.observability.metrics import Metrics
from gateway.replay.exchange import VirtualExchange
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.job import MODEL, ReplayJob, worker_of
from gateway.scaling.advice import Advice
from gateway.scaling.planner import ROUND_S, Planner, PlannerSources


class ScaledFleet(VirtualFleet):
    """Virtual fleet that is advised; `on_round` gets each advice, `on_end` each answered request."""

    def __init__(self, setup: Setup, objective_s: float, hold_s: float = 300.0) -> None:
        self.metrics = Metrics()
        super().__init__(setup)
        router = self.router
        sources = PlannerSources(
            self.fleet, router.ledger, self.metrics, self.index, router.learning.speed_models, lambda: {}
        )
        self.planner = Planner(sources, objective_s, hold_s, clock=lambda: self.clock.now)
        self.on_round: Callable[[Advice], None] = _ignore
        self.on_end: Callable[[ReplayJob], None] = _ignore
        self._next_number = setup.num_workers
        self._has_more = False

    def play(self, jobs: Iterable[ReplayJob]) -> None:
        """Play requests in the order of their arrival, to the last answer."""
        arrivals = iter(jobs)
        self._has_more = True
        self._take(arrivals)
        self.clock.at(ROUND_S, self._round)
        self.clock.run()

    def join(self) -> WorkerId:
        """Add a worker with an empty cache."""
        self._next_number += 1
        self._join(self._next_number - 1)
        return worker_of(self._next_number - 1)

    def leave(self, worker: WorkerId) -> None:
        """Drain a worker; it is gone after its last answer."""
        self.fleet.drain(worker, True)
        self._drop_if_idle(worker)

    def began(self, exchange: VirtualExchange) -> None:
        super().began(exchange)
        self.metrics.worker(exchange.decision.worker.id).num_requests += 1

    def ended(self, exchange: VirtualExchange) -> None:
        super().ended(exchange)
        worker = exchange.decision.worker.id
        self.metrics.worker(worker).ttft_s.observe(exchange.job.ttft_s)
        self.on_end(exchange.job)
        self._drop_if_idle(worker)

    def _take(self, arrivals: Iterable[ReplayJob]) -> None:
        job = next(iter(arrivals), None)
        if job is None:
            self._has_more = False
            return
        self.clock.at(job.at, VirtualExchange(self, job).start)
        self.clock.at(job.at, partial(self._take, arrivals))

    def _round(self) -> None:
        self.planner.round()
        while self.index.sweep():
            pass  # between requests, in a gateway
        advice = self.planner.advice(MODEL, Role.BOTH)
        assert advice is not None
        self.on_round(advice)
        if self._has_more or self.open:
            self.clock.at(self.clock.now + ROUND_S, self._round)

    def _drop_if_idle(self, worker: WorkerId) -> None:
        member = self.fleet.get(worker)
        if member and member.is_draining and not self.router.ledger.load(worker).num_in_flight:
            late_s = self.clock.now + 2 * self.setup.event_delay_s  # its last events are on their way
            self.clock.at(late_s, partial(self._drop, worker))

    def _drop(self, worker: WorkerId) -> None:
        self.engines[worker].stop()
        self.fleet.drop(worker)
        for part in (self.index, self.assumed, self.metrics):
            part.drop_worker(worker)
        self.router.learning.drop(worker)


def _ignore(_: object) -> None:
    """Do nothing: default without an observer."""
