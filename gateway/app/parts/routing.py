"""Routing decisions, and the log of the latest."""

from collections.abc import Mapping, Sequence

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import decision_handlers
from gateway.app.component import Component
from gateway.app.parts.index import IndexPart
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.core.ledger import Ledger
from gateway.disaggregation import metrics as disaggregation
from gateway.disaggregation.metrics import DisaggregationCollector
from gateway.disaggregation.stats import disaggregation_stats_of
from gateway.models.prompt_source import PromptSource
from gateway.observability.observers import Observers
from gateway.routing import prediction_metrics
from gateway.routing.active_policy import ActivePolicy
from gateway.routing.decision_log import DecisionLog
from gateway.routing.prediction_metrics import PredictionsCollector
from gateway.routing.router import Router
from gateway.routing.speed_model import SpeedModels


class RoutingPart(Component):
    metric_sections = (
        ("Predicted times to first token", prediction_metrics.METRICS),
        ("Disaggregation", disaggregation.METRICS),
    )

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        index: IndexPart,
        ledger: Ledger,
        prompts: PromptSource,
        active_policy: ActivePolicy,
        observers: Observers,
    ) -> None:
        """Make a router for a fleet, which takes the active policy. Raises ConfigError."""
        self.disaggregation_stats = disaggregation_stats_of(config)
        self.records = DecisionLog(observers)
        self._parts_of = active_policy.parts_of
        self.router = Router(
            fleet=fleet,
            index=index.index,
            assumed=index.assumed,
            policy=active_policy.policy,
            tokenize=prompts.tokenize,
            ledger=ledger,
            keep_sent_s=config.events.assumed_keep_s,
            disaggregation=self.disaggregation_stats.policy,
            speed_models=SpeedModels.of(),
            observers=observers,
        )
        active_policy.drive(self.router)

    def collectors(self) -> Sequence[Collector]:
        return [
            PredictionsCollector(self.router.predictions),
            DisaggregationCollector(self.disaggregation_stats, self.router),
        ]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return decision_handlers(self.records, self._parts_of)
