"""Usage check: reads the usage of complete answers, and counts and logs impossible figures of workers."""

import logging
import time
from collections.abc import Callable, Mapping

from gateway.core.cached_reports import CachedReports
from gateway.core.decision import Decision
from gateway.core.engine import StreamUsage
from gateway.core.usage import Usage
from gateway.core.usage_reading import without_hits
from gateway.core.worker import WorkerId
from gateway.http.response_observer import ResponseObserver
from gateway.observability.metrics import Metrics
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.proxy")


class UsageCheck:
    """Checks reported usage; `engines` describes usage reports by engine name, `clock` is monotonic
    seconds."""

    def __init__(
        self,
        metrics: Metrics,
        engines: Mapping[str, StreamUsage] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._engines = engines or {}
        self._reports = CachedReports()
        self._log = RateLimitedLog(log, clock=clock)

    def __repr__(self) -> str:
        return f"UsageCheck({self._log})"

    def of(self, answer: ResponseObserver, decision: Decision | None, path: str = "") -> Usage | None:
        """Return the usage of an answer on a route, or None where the worker reported none or an impossible
        one. Called once for each answer."""
        usage = answer.usage()
        if answer.refused and decision is not None:
            self.refuse(decision.worker.id, answer.refused)
        if usage and decision:
            usage = self._reports.settled(usage, decision.worker, path, is_stream=answer.is_stream)
        if usage and answer.num_answers > 1 and decision and self._copies_hit(decision.worker.engine):
            return without_hits(usage)
        return usage

    def _copies_hit(self, engine: str) -> bool:
        reports = self._engines.get(engine)
        return reports is not None and reports.copies_hit

    def refuse(self, worker: WorkerId, why: str) -> None:
        """Count and log a usage that is ignored as impossible."""
        self._metrics.worker(worker).num_refused_usages += 1
        self._log.warning("worker %s: usage ignored (%s); no metric counts it", worker, why)
