"""Tokens that workers compute again, by cause."""

from collections.abc import Mapping, Sequence

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import shows
from gateway.admin.console.pooled_bound import PooledBound
from gateway.app.component import Component, RoutingObserver
from gateway.config import Config
from gateway.observability.cache_loss import metrics as cache_loss
from gateway.observability.cache_loss.explainer import Decode
from gateway.observability.cache_loss.metrics import LossCollector
from gateway.observability.cache_loss.observer import CacheLoss, keep_explained
from gateway.runtime.tasks import Tasks


class CacheLossPart(Component):
    metric_sections = (("Cache losses", cache_loss.METRICS),)

    def __init__(self, config: Config, decode: Decode, pooled: PooledBound | None) -> None:
        shows_text = config.admin.show_prompt_text
        self.losses = CacheLoss(decode, shows_text=shows_text, seen=pooled.seen if pooled else None)

    async def start(self, tasks: Tasks) -> None:
        tasks.start("explain cache losses", keep_explained(self.losses))

    def collectors(self) -> Sequence[Collector]:
        return [LossCollector(self.losses)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"cache_loss": shows(self.losses.describe)}

    def observers(self) -> Sequence[RoutingObserver]:
        return [RoutingObserver(self.losses.decided, self.losses.answered, self.losses.finished)]
