"""The configuration in use, and its reload on request."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import reload_handlers
from gateway.app import reloads
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.reloads import Reloads
from gateway.config import Config
from gateway.config.diff import ConfigDiff
from gateway.core.errors import ConfigError


class ReloadsPart(Component):
    """Reloads of a gateway's configuration; `prepare` asks all components.

    config   the configuration in use
    reloads  where it is read again; None in one of several processes, where the supervisor reloads
    """

    metric_sections = (("Configuration", reloads.METRICS),)

    def __init__(self, config: Config, prepare: Callable[[ConfigChange], Awaitable[Swap]]) -> None:
        self.config = config
        self.reloads: Reloads | None = None
        self._prepare = prepare

    async def reload(self) -> dict[str, Any]:
        """Apply a new configuration. Raises ConfigError, with nothing changed."""
        if self.reloads is None:
            raise ConfigError("it was not read from anywhere: give it to a new gateway")
        return await self.reloads.reload(self._apply)

    async def _apply(self, difference: ConfigDiff) -> None:
        new = difference.applied_to(self.config)
        (await self._prepare(ConfigChange(new, difference.added, difference.dropped)))()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return partial(setattr, self, "config", change.config)

    def collectors(self) -> Sequence[Collector]:
        return [self.reloads] if self.reloads else []

    def admin_handlers(self) -> Mapping[str, Handler]:
        return reload_handlers(self.reload)
