"""Model names that an endpoint answers to: adapters are loaded and unloaded at run time."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gateway.core.engine import ModelInfo
from gateway.core.fleet import Fleet
from gateway.core.spelling import shortened
from gateway.core.worker import Worker
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts, served_models
from gateway.discovery.refused import log_unusable
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.roster")

ASK_EVERY_S = 5.0
"""Time between two requests for names: with the probe interval and a busy engine's answer, a loaded adapter
is known within 10 s."""


class NamedEndpoint(Protocol):
    """Part of `roster.Endpoint` that is read and changed here."""

    url: str
    probe: Probe
    facts: Facts | None
    workers: tuple[Worker, ...]


class ServedNames:
    """Keeps the served names of endpoints current. `on_renamed` is called after changes. `clock` is monotonic
    seconds."""

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
        """Request the names again after a failed request: the worker may have unloaded its adapter."""
        self._due_s.pop(url, None)

    async def ask(self, endpoint: NamedEndpoint) -> None:
        """Request an endpoint's names unless done lately. One that does not answer is down soon, or answers
        the next time."""
        if endpoint.facts is None or self._clock() < self._due_s.get(endpoint.url, 0.0):
            return
        self._num_asked = number = self._num_asked + 1
        with suppress(ProbeError):
            models = await endpoint.probe.models()
            if number < self._newest.get(endpoint.url, 0):
                return  # a later request was answered before
            self._newest[endpoint.url] = number
            self._due_s[endpoint.url] = self._clock() + ASK_EVERY_S
            if endpoint.workers and _is_another_list(endpoint.workers, models):
                self._rename(endpoint, endpoint.facts, models)

    def _rename(self, endpoint: NamedEndpoint, facts: Facts, models: tuple[ModelInfo, ...]) -> None:
        before = {served.name for served in endpoint.workers[0].served}
        after = {model.id for model in models}
        self._log.info(
            "worker %s: model names changed: added %s, removed %s",
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


def _is_another_list(workers: tuple[Worker, ...], models: tuple[ModelInfo, ...]) -> bool:
    """Return True if the adapters changed. A list with other base models means a starting or ending
    engine."""
    known, listed = workers[0].served, served_models(models)
    if listed == known:
        return False
    of_known, of_listed = ({each.root for each in some if each.adapter is None} for some in (known, listed))
    return of_known == of_listed
