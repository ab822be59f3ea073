"""Reads the usage of answers that have ended, and counts and logs those that workers got wrong."""

import logging
import time
from collections.abc import Callable

from gateway.core.decision import Decision
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.http.response_observer import Answer
from gateway.observability.metrics import Metrics
from gateway.runtime.limited_log import Limited

log = logging.getLogger("kvgate.proxy")


class Usages:
    """`clock` is monotonic seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._logged = Limited()

    def __repr__(self) -> str:
        return f"Usages({self._logged})"

    def of(self, answer: Answer, decision: Decision | None) -> Usage | None:
        """None where the worker reported none, or one that cannot be. Called once for each answer."""
        usage = answer.usage()
        if answer.refused and decision is not None:
            self.refuse(decision.worker.id, answer.refused)
        return usage

    def refuse(self, worker: WorkerId, why: str) -> None:
        """Token counts of this worker are not believed."""
        self._metrics.worker(worker).num_refused_usages += 1
        if num := self._logged.count(worker, self._clock()):
            answers = "its answer" if num == 1 else f"{num} of its answers, the last time"
            log.warning("worker %s: usage ignored (%s: %s); nothing is counted with it", worker, answers, why)
