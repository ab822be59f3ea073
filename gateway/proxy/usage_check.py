"""Usage check: reads the usage of complete answers, and counts and logs impossible figures of workers."""

import logging
import time
from collections.abc import Callable

from gateway.core.decision import Decision
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.http.response_observer import ResponseObserver
from gateway.observability.metrics import Metrics
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.proxy")


class UsageCheck:
    """Checks reported usage; `clock` is monotonic seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._log = RateLimitedLog(log, clock=clock)

    def __repr__(self) -> str:
        return f"UsageCheck({self._log})"

    def of(self, answer: ResponseObserver, decision: Decision | None) -> Usage | None:
        """Return the usage of an answer, or None where the worker reported none or an impossible one. Called
        once for each answer."""
        usage = answer.usage()
        if answer.refused and decision is not None:
            self.refuse(decision.worker.id, answer.refused)
        return usage

    def refuse(self, worker: WorkerId, why: str) -> None:
        """Count and log a usage that is ignored as impossible."""
        self._metrics.worker(worker).num_refused_usages += 1
        self._log.warning("worker %s: usage ignored (%s); nothing is counted with it", worker, why)
