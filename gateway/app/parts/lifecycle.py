"""States of workers that have joined: slow start, active, draining, ejected."""

from gateway.app.component import Component
from gateway.app.parts.open_requests import OpenRequests
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.core.ledger import Ledger
from gateway.core.worker import WorkerId
from gateway.discovery.lifecycle import Lifecycle, RemainingWork
from gateway.discovery.outlier_detection import OutlierRules
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers


class LifecyclePart(Component):
    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        ledger: Ledger,
        metrics: Metrics,
        observers: Observers,
        requests: OpenRequests,
    ) -> None:
        self._metrics = metrics
        self.lifecycle = Lifecycle(
            fleet,
            RemainingWork(
                in_flight=lambda worker: ledger.load(worker).num_in_flight,
                unstarted_tokens=lambda worker: ledger.load(worker).booked_tokens,
                fetching=requests.num_fetching,
            ),
            num_answered=lambda worker: metrics.worker(worker).num_answered,
            observers=observers,
            on_ejected=requests.worker_down,
            rules=OutlierRules(
                config.lifecycle.eject_after_failures,
                config.lifecycle.eject_s,
                config.lifecycle.stalled_after_s,
                config.lifecycle.max_ejected_percent,
            ),
            slow_start_s=config.lifecycle.slow_start_s,
        )

    def rejected(self, worker: WorkerId, busy_s: float) -> None:
        """Count a request that a saturated worker rejected, and send that worker none for `busy_s`."""
        self._metrics.worker(worker).num_rejected += 1
        self.lifecycle.busy(worker, busy_s)
