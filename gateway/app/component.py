"""Component: what a gateway is a list of. Each is made from the configuration and the parts that it names.

made in order ─ start, downwards ─ … reconfigure … ─ drain, all at once ─ stop, upwards
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.endpoint_table import AdminRoute
from gateway.config import Config
from gateway.observability.metric_spec import MetricSpec
from gateway.observability.observers import OnAnswered, OnDecided, OnFinished
from gateway.runtime.tasks import Tasks

Swap = Callable[[], None]
"""Applies a prepared configuration. It cannot fail and has no await, so each request sees either the old
values or the new ones."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Another configuration for a running gateway, with the workers (as `parse_spec` reads them) that it adds
    and drops. `policy_source` is the policy file's text where it was read before."""

    config: Config
    added: Sequence[str] = ()
    dropped: Sequence[str] = ()
    policy_source: str | None = None


@dataclass(frozen=True, slots=True)
class RoutingObserver:
    """Callbacks of the data path, each for one event of a request (`observability/observers.py`)."""

    decided: OnDecided | None = None
    answered: OnAnswered | None = None
    finished: OnFinished | None = None


class Component:
    """Part of a gateway. Each method has a default; a component has those of which it has something to say.

    metric_sections  the metrics of its collectors, by the title of their table in the reference
    admin_routes     rows of its own in the table of the admin API, beside those of `admin/endpoint_table.py`
    """

    metric_sections: ClassVar[Sequence[tuple[str, Sequence[MetricSpec]]]] = ()
    admin_routes: ClassVar[Sequence[AdminRoute]] = ()

    def __str__(self) -> str:
        """Name for people, of the class: `LogShipperPart` is the log shipper part."""
        return re.sub(r"\B(?=[A-Z])", " ", type(self).__name__).lower()

    @cached_property
    def tasks(self) -> Tasks:
        """Background tasks, which are cancelled before `stop`."""
        return Tasks()

    async def start(self, tasks: Tasks) -> None:
        """Open what it serves; `tasks` run until it stops. Raises ConfigError, or what failed."""

    async def drain(self, seconds: float) -> None:
        """Let the requests in flight end, for at most so many seconds; nothing is stopped yet."""

    async def stop(self) -> None:
        """Close what was opened, by `start` or before. Called once, however far the start came."""

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        """Validate a change and return what applies it; None where nothing changes here. Raises ConfigError,
        with nothing changed."""
        return None

    def collectors(self) -> Sequence[Collector]:
        """Collectors of its metrics, asked for once all components are made."""
        return ()

    def admin_handlers(self) -> Mapping[str, Handler]:
        """Handlers of the admin API by the names of their rows."""
        return {}

    def observers(self) -> Sequence[RoutingObserver]:
        """Observers of decisions, answers and ends of requests."""
        return ()
