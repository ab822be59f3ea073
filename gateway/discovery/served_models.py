"""Which names an endpoint answers to: adapters are loaded and unloaded while it runs."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gateway.core.engine import ModelInfo
from gateway.core.fleet import Fleet
from gateway.core.worker import Worker
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts, served_models
from gateway.discovery.refused import log_unusable
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.roster")

MAX_NAMED = 20
"""Names in a line of the log."""
ASK_EVERY_S = 5.0
"""With a probe's interval and a busy engine's answer, what is loaded anywhere is known within 10 s."""


class Endpoint(Protocol):
    """As much of one (`roster.Endpoint`) as is asked and changed."""

    url: str
    probe: Probe
    facts: Facts | None
    workers: tuple[Worker, ...]


class Names:
    """`on_renamed` is called when some have come or gone. `clock` is monotonic seconds."""

    def __init__(
        self,
        fleet: Fleet,
        on_renamed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._on_renamed = on_renamed
        self._clock = clock
        self._log = RateLimitedLog(log, clock=clock)
        self._due_s: dict[str, float] = {}
        self._num_asked = 0
        self._newest: dict[str, int] = {}

    def doubt(self, url: str) -> None:
        """A request failed there: it may have unloaded what it was asked for."""
        self._due_s.pop(url, None)

    async def ask(self, endpoint: Endpoint) -> None:
        """Where it was not asked lately. One that does not answer is down soon, or answers the next time."""
        if endpoint.facts is None or self._clock() < self._due_s.get(endpoint.url, 0.0):
            return
        self._num_asked = number = self._num_asked + 1
        with suppress(ProbeError):
            models = await endpoint.probe.models()
            if number < self._newest.get(endpoint.url, 0):
                return  # one that was asked later has answered
            self._newest[endpoint.url] = number
            self._due_s[endpoint.url] = self._clock() + ASK_EVERY_S
            if endpoint.workers and _is_another_list(endpoint.workers, models):
                self._rename(endpoint, endpoint.facts, models)

    def _rename(self, endpoint: Endpoint, facts: Facts, models: tuple[ModelInfo, ...]) -> None:
        before = {served.name for served in endpoint.workers[0].served}
        after = {model.id for model in models}
        self._log.info(
            "worker %s answers to other names: new %s, gone %s",
            endpoint.url,
            shortened(sorted(after - before)) or "none",
            shortened(sorted(before - after)) or "none",
        )
        served = served_models(models)
        endpoint.facts = replace(facts, models=models)
        with self._fleet.batch():
            endpoint.workers = tuple(
                self._fleet.serve(worker.id, served) or worker for worker in endpoint.workers
            )
        log_unusable(self._log, self._fleet, endpoint.workers[0])
        self._on_renamed()


def shortened(names: Iterable[str]) -> str:
    """No more names than can be read in a line of the log."""
    given = list(names)
    more = f" and {len(given) - MAX_NAMED} more" if len(given) > MAX_NAMED else ""
    return ", ".join(given[:MAX_NAMED]) + more


def _is_another_list(workers: tuple[Worker, ...], models: tuple[ModelInfo, ...]) -> bool:
    """One without the models themselves is not one of their adapters: an engine that begins or ends."""
    known, told = workers[0].served, served_models(models)
    if told == known:
        return False
    of_known, of_told = ({each.root for each in some if each.adapter is None} for some in (known, told))
    return of_known == of_told
