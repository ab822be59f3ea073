"""Logs what a worker reports and nothing is done with: names that no request may use, impossible figures."""

import logging
from collections.abc import Mapping

from gateway.core.eligibility import summary
from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Fleet
from gateway.core.worker import Worker
from gateway.runtime.limited_log import Limited

log = logging.getLogger("kvgate.roster")


def log_unusable(fleet: Fleet, worker: Worker) -> None:
    """One of an endpoint's: its ranks list the same names."""
    if unusable := fleet.unusable(worker.id):
        log.warning("worker %s: not used for %s; it gets no such requests", worker.url, summary(unusable))


class Figures:
    """Those of metrics pages beyond their bounds (`core/bounds.py`): a line for each worker, seldom."""

    def __init__(self) -> None:
        self._logged = Limited()

    def see(self, url: str, ranks: Mapping[int, EngineMetrics], now: float) -> None:
        refused = sorted({name for metrics in ranks.values() for name in metrics.refused})
        if refused and (num := self._logged.count(url, now)):
            log.warning(
                "worker %s: figures ignored (%s impossible, %d times); they count as not reported",
                url,
                ", ".join(refused),
                num,
            )
