"""Components of a gateway in their order: started downwards, stopped upwards, reconfigured all or none."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar, get_type_hints

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.endpoint_table import ADMIN_ROUTES, AdminRoute
from gateway.app.component import Component, ConfigChange, Swap
from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError
from gateway.observability.metric_spec import MetricSpec

log = logging.getLogger("kvgate")

LEAST_SHARE_S = 5.0
"""Least time for a component to stop, however short the drain is."""
CUT_S = 1.0
"""Time for a cut component to end what it is at."""

C = TypeVar("C", bound=Component)


class Part(cached_property[C]):
    """Declares a component in a `ComponentList`: a method that makes it of others, which it names."""


class StartFailed(Exception):
    """Failed start of a component; the message names it and the cause."""


class ComponentList:
    """Components as declared by `Part`, in the order of the class; a subclass adds its own behind them."""

    @cached_property
    def all(self) -> Sequence[Component]:
        """Make the components. Raises ConfigError."""
        return [getattr(self, name) for name in _declared(type(self))]

    async def start(self) -> None:
        """Start all. Where one fails, those before it are stopped, the last one first. Raises StartFailed, or
        ConfigError, which names the option."""
        for component in self.all:
            try:
                await component.start(component.tasks)
            except BaseException as exc:
                await self.stop(0.0)
                if isinstance(exc, ConfigError):
                    raise ConfigError(f"{exc} (the {component} did not start)") from exc
                if isinstance(exc, Exception):
                    raise StartFailed(f"the {component} did not start: {cause_of(exc)}") from exc
                raise

    async def stop(self, drain_s: float) -> None:
        """Let requests end, then stop all, the last one first. One that takes longer than its share of the
        drain time is cut. A second call does nothing."""
        if not self._is_stopped:
            self._is_stopped = True
            until_s = drain_s + LEAST_SHARE_S
            drains = [_within(until_s, each, "drain", each.drain(drain_s)) for each in self.all]
            await asyncio.gather(*drains)
            share_s = max(LEAST_SHARE_S, drain_s / len(self.all))
            for component in reversed(self.all):
                await _within(share_s, component, "stop", _stopped(component))

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


async def _stopped(component: Component) -> None:
    await component.tasks.stop()
    await component.stop()


async def _within(seconds: float, component: Component, doing: str, work: Coroutine[Any, Any, None]) -> None:
    """Await a step of a component; one that fails or hangs is logged, and does not keep the others from
    theirs."""
    task = asyncio.get_running_loop().create_task(work, name=f"{doing} {component}")
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        log.error(
            "the %s did not %s within %g s: cancelled; the others still stop", component, doing, seconds
        )
        task.cancel()
        await asyncio.wait({task}, timeout=CUT_S)
    if task.done() and not task.cancelled() and (exc := task.exception()):
        log.error("the %s failed to %s; the others still stop", component, doing, exc_info=exc)
