"""SIGHUP and `POST /admin/config/reload`: read, compare, apply, tell.

file, environment, flags ─► Config ─► Difference ─► apply: all of it, or ConfigError and nothing
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.config.diff import Difference, compare
from gateway.core.errors import ConfigError

log = logging.getLogger("kvgate.config")

Reread = Callable[[], Config]
"""The configuration as it is now, from where it came at the start. Raises ConfigError."""
Apply = Callable[[Difference], Awaitable[None]]
"""Takes what can be taken. Raises ConfigError, with nothing changed."""


class Reloads(Collector):
    """`generation` is 1 at the start, and one more with each reload that was applied."""

    def __init__(self, given: Config, reread: Reread) -> None:
        self.generation = 1
        self.num_refused = 0
        self.pending: list[str] = []
        """Fields whose new values wait for a restart."""
        self._given = given
        self._reread = reread
        self._reading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Reloads(generation={self.generation}, refused={self.num_refused}, pending={self.pending})"

    async def reload(self, apply: Apply) -> dict[str, Any]:
        """What came of it, as plain JSON values. Raises ConfigError, which is logged: nothing has changed."""
        async with self._reading:
            try:
                new = await asyncio.to_thread(self._reread)
                difference = compare(self._given, new)
                await apply(difference)
            except ConfigError as exc:
                self.num_refused += 1
                log.error("the configuration in use stays: %s", exc)
                raise
            self._given = difference.applied_to(self._given)
            self.generation += 1
            self.pending = list(difference.restart)
        return self._tell(difference)

    def _tell(self, difference: Difference) -> dict[str, Any]:
        for line in difference.lines():
            log.info("%s", line)
        if difference.restart:
            log.warning("these need a restart, and stay as they were: %s", ", ".join(difference.restart))
        log.info("configuration %d is in use, %d options changed", self.generation, len(difference.live))
        return {
            "generation": self.generation,
            "changed": list(difference.live),
            "needs_restart": list(difference.restart),
            "workers_added": list(difference.added),
            "workers_dropped": list(difference.dropped),
        }

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        generation = GaugeMetricFamily(
            "kvgate_config_generation", "1 as started, one more with each reload of the configuration"
        )
        generation.add_metric([], self.generation)
        yield generation
        reloads = CounterMetricFamily(
            "kvgate_config_reloads", "Times that the configuration was read anew", labels=["result"]
        )
        reloads.add_metric(["applied"], self.generation - 1)
        reloads.add_metric(["refused"], self.num_refused)
        yield reloads
        pending = GaugeMetricFamily(
            "kvgate_config_restart_pending", "Options that are changed, and need a restart"
        )
        pending.add_metric([], len(self.pending))
        yield pending
