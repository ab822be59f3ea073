"""The policies in use, with A/B tests and shadows."""

from collections.abc import Mapping, Sequence

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import policy_handlers
from gateway.app.component import Component, ConfigChange, Swap
from gateway.config import Config
from gateway.observability.observers import Observers
from gateway.routing import active_policy as policies
from gateway.routing import experiment_metrics
from gateway.routing.active_policy import ActivePolicy, PolicyCollector
from gateway.routing.experiment_metrics import ExperimentsCollector
from gateway.routing.experiments import keep_compared
from gateway.runtime.tasks import Tasks


class PoliciesPart(Component):
    metric_sections = (
        ("Policies", policies.METRICS),
        ("A/B tests and shadow policies", experiment_metrics.METRICS),
    )

    def __init__(self, config: Config, source: str | None, observers: Observers) -> None:
        """Load the policies; `source` is the policy file's text where it was read before. Raises
        ConfigError."""
        self.active_policy = ActivePolicy(config, source)
        self._observers = observers
        self._watch()

    async def start(self, tasks: Tasks) -> None:
        tasks.start("compare policies", keep_compared(self.active_policy.experiments))

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        chosen = await self.active_policy.prepare(change.config, change.policy_source)

        def swap() -> None:
            self.active_policy.use(*chosen)
            self._watch()

        return swap

    def collectors(self) -> Sequence[Collector]:
        return [PolicyCollector(self.active_policy), ExperimentsCollector(self.active_policy.experiments)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return policy_handlers(self.active_policy)

    def _watch(self) -> None:
        """Observe decisions for A/B tests and shadows, while there are some."""
        experiments, observers = self.active_policy.experiments, self._observers
        if experiments.is_on and experiments.decided not in observers.decided:
            observers.decided.append(experiments.decided)
            observers.finished.append(experiments.finished)
