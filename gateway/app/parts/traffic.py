"""The last hour's traffic, for the console, and the hit rate that one large cache would have."""

from collections.abc import Mapping

from aiohttp.typedefs import Handler

from gateway.admin.app import traffic_handlers
from gateway.admin.console.pooled_bound import pooled_bound_of
from gateway.admin.console.traffic_history import TrafficHistory, keep_sampled
from gateway.app.component import Component
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.observability.metrics import Metrics
from gateway.runtime.tasks import Tasks


class TrafficPart(Component):
    def __init__(self, config: Config, fleet: Fleet, metrics: Metrics) -> None:
        self.pooled = pooled_bound_of(config, fleet)
        self.history = TrafficHistory(metrics, self.pooled)

    async def start(self, tasks: Tasks) -> None:
        tasks.start("sample traffic", keep_sampled(self.history))

    def admin_handlers(self) -> Mapping[str, Handler]:
        return traffic_handlers(self.history)
