"""SIGHUP and `POST /admin/config/reload`: read, compare, apply, report.

file, environment, flags ─► Config ─► ConfigDiff ─► apply: all of it, or ConfigError and nothing
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.config.diff import ConfigDiff, compare
from gateway.core.errors import ConfigError
from gateway.observability.metric_spec import counter, gauge

log = logging.getLogger("kvgate.config")

Reread = Callable[[], Config]
"""The configuration as it is now, from where it came at the start. Raises ConfigError."""
Apply = Callable[[ConfigDiff], Awaitable[None]]
"""Takes what can be taken. Raises ConfigError, with nothing changed."""

GENERATION = gauge(
    "kvgate_config_generation", "Generation of the configuration: 1 at the start, plus 1 with each reload."
)
RELOADS = counter("kvgate_config_reloads_total", "Reloads of the configuration, by result.", "result")
PENDING = gauge("kvgate_config_pending_options", "Changed options that take effect at the next restart.")
METRICS = (GENERATION, RELOADS, PENDING)


class Reloads(Collector):
    """Reloads of the configuration. `generation` is 1 at the start and grows with each applied reload."""

    def __init__(self, given: Config, reread: Reread) -> None:
        self.generation = 1
        self.num_refused = 0
        self.pending: list[str] = []
        """Fields with new values that wait for a restart."""
        self._given = given
        self._reread = reread
        self._reading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Reloads(generation={self.generation}, refused={self.num_refused}, pending={self.pending})"

    async def reload(self, apply: Apply) -> dict[str, Any]:
        """Reload; returns the result as JSON values. Raises ConfigError, logged, with nothing changed."""
        async with self._reading:
            try:
                new = await asyncio.to_thread(self._reread)
                difference = compare(self._given, new)
                await apply(difference)
            except ConfigError as exc:
                self.num_refused += 1
                log.error("reload rejected, keeping the current configuration: %s", exc)
                raise
            self._given = difference.applied_to(self._given)
            self.generation += 1
            self.pending = list(difference.restart)
        return self._report(difference)

    def _report(self, difference: ConfigDiff) -> dict[str, Any]:
        for line in difference.lines():
            log.info("%s", line)
        if difference.restart:
            log.warning(
                "changed options that need a restart keep their values: %s", ", ".join(difference.restart)
            )
        log.info("configuration %d is in use, %d options changed", self.generation, len(difference.live))
        return {
            "generation": self.generation,
            "changed": list(difference.live),
            "needs_restart": list(difference.restart),
            "workers_added": list(difference.added),
            "workers_removed": list(difference.dropped),
        }

    def collect(self) -> Iterator[Metric]:
        yield GENERATION.single(self.generation)
        yield RELOADS.family([("applied", self.generation - 1), ("rejected", self.num_refused)])
        yield PENDING.single(len(self.pending))
