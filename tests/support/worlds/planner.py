"""Planner of workers, with a clock that the test moves."""

from collections.abc import Mapping

from gateway.core.blocks import root_hash
from gateway.core.fleet import Fleet
from gateway.core.ledger import Ledger
from gateway.core.worker import Role, ServedModel, Worker, WorkerId
from gateway.index.memory import MemoryIndex
from gateway.observability.metrics import Metrics
from gateway.routing.speed_model import SpeedModels
from gateway.scaling.advice import Advice
from gateway.scaling.planner import ROUND_S, Planner, PlannerSources


class PlannerWorld:
    """A gateway's counts, and a planner with a clock that the test moves."""

    def __init__(self, *, is_alone: bool = True) -> None:
        self.fleet, self.ledger, self.metrics = Fleet({"gpt": "llama"}), Ledger(), Metrics()
        self.index, self.speeds = MemoryIndex(), SpeedModels()
        self.queued: Mapping[str, tuple[int, int]] = {}
        self.now = 1000.0
        sources = PlannerSources(
            self.fleet, self.ledger, self.metrics, self.index, self.speeds, lambda: self.queued
        )
        self.planner = Planner(
            sources, 2.0, 300.0, itl_objective_s=0.1, is_alone=is_alone, clock=lambda: self.now
        )

    def join(self, name: str, role: Role = Role.BOTH, model: str = "llama") -> WorkerId:
        served = (ServedModel(model, f"/models/{model}"),)
        self.fleet.add(Worker(WorkerId(name), f"http://{name}", served, block_size=16, role=role))
        self.index.add_worker(WorkerId(name), root_hash(model), 16)
        return WorkerId(name)

    def send(self, worker: WorkerId, num: int, computed: int = 1000, ttft_s: float = 0.3) -> None:
        """Requests that a worker got, with their first tokens."""
        for _ in range(num):
            self.metrics.worker(worker).num_requests += 1
            self.metrics.worker(worker).ttft_s.observe(ttft_s)
            self.speeds.computed(worker, computed)

    def round(self, num: int = 1) -> None:
        for _ in range(num):
            self.now += ROUND_S
            self.planner.round()

    def advice(self, role: Role = Role.BOTH, model: str = "llama") -> Advice:
        found = self.planner.advice(model, role)
        assert found is not None
        return found
