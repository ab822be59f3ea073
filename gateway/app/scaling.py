"""The planner of a gateway: advice for autoscalers, from its own counts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.scaling.planner import Planner, PlannerSources

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway


def check_scaling(config: Config) -> None:
    """Refuse an external scaler that would see a part of the requests only. Raises ConfigError."""
    if config.scaling.port and config.server.processes > 1:
        raise ConfigError(
            "scaling_port: the external scaler needs processes = 1, since a process sees its own requests "
            "only; let Prometheus add up kvgate_scaling_desired_workers instead"
        )


def planner_of(gateway: "Gateway") -> Planner:
    """Make the planner, and have it notified of requests that no worker gets. Raises ConfigError."""
    check_scaling(gateway.config)

    def queued() -> Mapping[str, tuple[int, int]]:
        gate = gateway.dispatch.context.gate
        models = gate.queues.models if gate is not None else {}
        return {name: (len(each.queue), each.queue.num_tokens) for name, each in models.items()}

    sources = PlannerSources(
        gateway.fleet,
        gateway.router.ledger,
        gateway.metrics,
        gateway.index,
        gateway.router.learning.speed_models,
        queued,
    )
    options = gateway.config.scaling
    is_alone = options.port > 0  # the external scaler is for one gateway
    planner = Planner(sources, options.ttft_objective_s, options.down_after_s, is_alone=is_alone)
    gateway.metrics.on_unserved = planner.unserved
    return planner
