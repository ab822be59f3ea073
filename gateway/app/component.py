"""Component: what a gateway is a list of. Each is made from the configuration and the parts that it names.

made in order ─ start, downwards ─ … reconfigure … ─ drain, all at once ─ stop, upwards
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.endpoint_table import AdminRoute
from gateway.config import Config
from gateway.observability.metric_spec import MetricSpec
from gateway.observability.observers import OnAnswered, OnDecided, OnFinished
from gateway.runtime.runnables import Runnable

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


class Component(Runnable):
    """Part of a gateway. Each method has a default; a component has those of which it has something to say.

    metric_sections  the metrics of its collectors, by the title of their table in the reference
    admin_routes     rows of its own in the table of the admin API, beside those of `admin/endpoint_table.py`
    """

    metric_sections: ClassVar[Sequence[tuple[str, Sequence[MetricSpec]]]] = ()
    admin_routes: ClassVar[Sequence[AdminRoute]] = ()

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
