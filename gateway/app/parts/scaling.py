"""Advice for autoscalers, from the gateway's own counts."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import shows
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.fleet import FleetPart
from gateway.config import Config
from gateway.config.scaling import roles_at_zero
from gateway.core.errors import ConfigError
from gateway.costs.transfer_speed import TransferSpeed
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from gateway.scaling import metrics as scaling
from gateway.scaling.metrics import ScalingCollector
from gateway.scaling.planner import Planner, PlannerSources, keep_advised
from gateway.scaling.report import describe
from gateway.tenancy.admission.gate import Gate


class ScalingPart(Component):
    """Planner, which is notified of requests that no worker gets; `gate` is the admission gate in use."""

    metric_sections = (("Advice for autoscalers", scaling.METRICS),)

    def __init__(
        self,
        config: Config,
        fleet: FleetPart,
        router: Router,
        gate: Callable[[], Gate | None],
        looked: Callable[[], Awaitable[None]],
    ) -> None:
        """Make the planner, which advises once the gateway has `looked` for its workers. Raises
        ConfigError."""
        check_scaling(config)
        self._gate, self._looked = gate, looked
        speeds = router.learning.speed_models
        split = router.disaggregation
        transfer = TransferSpeed() if split is None else split.transfer
        sources = PlannerSources(
            fleet.fleet, router.ledger, fleet.metrics, router.index, speeds, self._queued, transfer
        )
        options = config.scaling
        is_alone = options.port > 0  # the external scaler is for one gateway
        self.planner = planner = Planner(
            sources,
            options.ttft_objective_s,
            options.down_after_s,
            itl_objective_s=options.itl_objective_s,
            is_alone=is_alone,
        )
        planner.configure(roles_at_zero(options.models))
        fleet.metrics.on_unserved = planner.unserved

    async def start(self, tasks: Tasks) -> None:
        tasks.start("advise autoscalers", keep_advised(self.planner, self._looked))

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return lambda: self.planner.configure(roles_at_zero(change.config.scaling.models))

    def collectors(self) -> Sequence[Collector]:
        return [ScalingCollector(self.planner.advices, self.planner.splits)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"advice": shows(self._describe)}

    def _describe(self) -> dict[str, Any]:
        return describe(self.planner.advices(), self.planner.splits())

    def _queued(self) -> Mapping[str, tuple[int, int]]:
        gate = self._gate()
        models = gate.queues.models if gate is not None else {}
        return {name: (len(each.queue), each.queue.num_tokens) for name, each in models.items()}


def check_scaling(config: Config) -> None:
    """Refuse an external scaler that would see a part of the requests only. Raises ConfigError."""
    if config.scaling.port and config.server.processes > 1:
        raise ConfigError(
            "scaling_port: the external scaler needs processes = 1, since a process sees its own requests "
            "only; let Prometheus add up kvgate_scaling_desired_workers instead"
        )
