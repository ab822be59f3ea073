"""Components of a gateway in their order: started downwards, stopped upwards, reconfigured all or none."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import TypeVar, get_type_hints

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.endpoint_table import ADMIN_ROUTES, AdminRoute
from gateway.app.component import Component, ConfigChange, Swap
from gateway.observability.metric_spec import MetricSpec
from gateway.runtime.runnables import start_all, stop_all

C = TypeVar("C", bound=Component)


class Part(cached_property[C]):
    """Declares a component in a `ComponentList`: a method that makes it of others, which it names."""


class ComponentList:
    """Components as declared by `Part`, in the order of the class; a subclass adds its own behind them."""

    @cached_property
    def all(self) -> Sequence[Component]:
        """Make the components. Raises ConfigError."""
        return [getattr(self, name) for name in _declared(type(self))]

    async def start(self) -> None:
        """Start all. Where one fails, all are stopped. Raises StartFailed, or ConfigError, which names the
        option."""
        try:
            await start_all(self.all)
        except BaseException:
            self._is_stopped = True
            raise

    async def stop(self, drain_s: float) -> None:
        """Let requests end for so many seconds, then stop all. A second call does nothing."""
        if not self._is_stopped:
            self._is_stopped = True
            await stop_all(self.all, drain_s)

    _is_stopped = False

    async def prepare(self, change: ConfigChange) -> Swap:
        """Ask all to validate a change, and return the swap that applies it. Raises ConfigError, with nothing
        changed."""
        swaps = [swap for each in self.all if (swap := await each.reconfigure(change)) is not None]

        def apply() -> None:
            for swap in swaps:
                swap()

        return apply

    def collectors(self) -> Iterator[Collector]:
        for component in self.all:
            yield from component.collectors()

    def admin_handlers(self) -> dict[str, Handler]:
        return {name: handler for each in self.all for name, handler in each.admin_handlers().items()}

    @classmethod
    def metric_sections(cls) -> Iterator[tuple[str, Sequence[MetricSpec]]]:
        """Yield the metrics of all components by the title of their table, without making one."""
        for kind in _kinds(cls):
            yield from kind.metric_sections

    @classmethod
    def admin_routes(cls) -> Sequence[AdminRoute]:
        """Return the rows of the admin API, without making a component."""
        return (*ADMIN_ROUTES, *chain.from_iterable(kind.admin_routes for kind in _kinds(cls)))


def _declared(kind: type[ComponentList]) -> list[str]:
    """Names of the parts of a class, those of its bases first."""
    members = chain.from_iterable(vars(base).items() for base in reversed(kind.__mro__))
    return list(dict.fromkeys(name for name, each in members if isinstance(each, Part)))


def _kinds(kind: type[ComponentList]) -> Iterator[type[Component]]:
    for name in _declared(kind):
        yield get_type_hints(getattr(kind, name).func)["return"]
