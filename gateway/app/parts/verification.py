"""Predicted cache hits, compared with what engines report."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import shows
from gateway.app.component import Component, RoutingObserver
from gateway.core.fleet import Fleet
from gateway.core.worker import WorkerId
from gateway.index.base import Index
from gateway.models.prompt_source import PromptSource
from gateway.observability.cache_loss.observer import CacheLoss
from gateway.observability.metrics import Metrics
from gateway.observability.verification import metrics as verification
from gateway.observability.verification.metrics import VerifyCollector, describe, summary
from gateway.observability.verification.salt_alarm import SaltAlarm
from gateway.observability.verification.verifier import Verifier


class VerificationPart(Component):
    """Verifier; `doubt` is called with the URL and rank of a worker that may share its cache between
    tenants."""

    metric_sections = (("Accuracy of predictions", verification.METRICS),)

    def __init__(
        self,
        fleet: Fleet,
        index: Index,
        losses: CacheLoss,
        doubt: Callable[[str, int], object],
        metrics: Metrics,
        prompts: PromptSource,
    ) -> None:
        self.verifier = Verifier(fleet, index, time.monotonic, losses.set_drifting, SaltAlarm(doubt))
        self._metrics, self._prompts = metrics, prompts

    def summary(self, worker: WorkerId) -> Mapping[str, Any]:
        return summary(self.verifier, worker)

    def collectors(self) -> Sequence[Collector]:
        return [VerifyCollector(self.verifier)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"verify": shows(lambda: describe(self.verifier, self._metrics, self._prompts.decode))}

    def observers(self) -> Sequence[RoutingObserver]:
        return [RoutingObserver(self.verifier.decided, self.verifier.answered, self.verifier.finished)]
