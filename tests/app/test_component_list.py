"""Components of a gateway: a new one, and one that refuses a reload."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import aiohttp
import pytest
from aiohttp.typedefs import Handler
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.admin.app import shows
from gateway.admin.endpoint_table import AdminRoute
from gateway.app import Gateway
from gateway.app.component import Component, ConfigChange, RoutingObserver, Swap
from gateway.app.component_list import ComponentList, Part
from gateway.app.gateway_parts import Parts
from gateway.app.reloads import Reloads
from gateway.config import Config, load, replaced
from gateway.core.decision import Decided
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.observability.metric_spec import gauge
from gateway.runtime.tasks import Tasks
from tests.pages import admin_page

# a component of another project: one file (the class) and one line (the method of `WithToy`)

TOY_ATTEMPTS = gauge("kvgate_toy_attempts", "Attempts of a request that the toy component has read.")


class ToyPart(Component, Collector):
    metric_sections = (("Toys", (TOY_ATTEMPTS,)),)
    admin_routes = (AdminRoute("GET", "/admin/toy", "toy", "the toy"),)

    def __init__(self, config: Config, fleet: Fleet) -> None:
        self._fleet = fleet
        self.attempts = config.proxy.max_attempts
        self.is_started = self.is_stopped = False
        self.decided: list[Decided] = []

    async def start(self, tasks: Tasks) -> None:
        self.is_started = True
        tasks.start("play", asyncio.sleep(3600))

    async def stop(self) -> None:
        self.is_stopped = True

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        return lambda: setattr(self, "attempts", change.config.proxy.max_attempts)

    def collectors(self) -> Sequence[Collector]:
        return [self]

    def collect(self) -> Iterator[Metric]:
        yield TOY_ATTEMPTS.single(self.attempts)

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"toy": shows(lambda: {"attempts": self.attempts, "models": list(self._fleet.served())})}

    def observers(self) -> Sequence[RoutingObserver]:
        return [RoutingObserver(self.decided.append)]


class WithToy(Parts):
    @Part
    def toy(self) -> ToyPart:
        return ToyPart(self.config, self.fleet.fleet)


@pytest.mark.process
async def test_a_component_is_added_by_a_class_and_one_method() -> None:
    config = load({"port": 0, "admin_port": 0, "max_attempts": 3}, {})
    gateway = Gateway(config, compose=WithToy)
    gateway.reloads = Reloads(config, lambda: replaced(config, max_attempts=4))
    toy = gateway.parts.all[-1]
    assert isinstance(toy, ToyPart) and toy.decided.append in gateway.parts.observers.decided
    await gateway.start()
    try:
        admin = f"http://127.0.0.1:{gateway.admin_port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{admin}/metrics") as answer:
                assert "kvgate_toy_attempts 3.0" in (await answer.text()).splitlines()
            async with session.get(f"{admin}/admin/toy") as answer:
                assert await answer.json() == {"attempts": 3, "models": []}
            async with session.post(f"{admin}/admin/config/reload", json={}) as answer:
                assert (await answer.json())["changed"] == ["max_attempts"]
            async with session.get(f"{admin}/admin/toy") as answer:
                assert (await answer.json())["attempts"] == 4
        assert toy.is_started and not toy.is_stopped and len(toy.tasks) == 1
    finally:
        await gateway.stop(0)
    assert toy.is_stopped and not toy.tasks


def test_metrics_and_routes_are_known_before_a_component_is_made() -> None:
    assert [*WithToy.metric_sections()] == [*Parts.metric_sections(), ("Toys", (TOY_ATTEMPTS,))]
    assert [*WithToy.admin_routes()] == [*Parts.admin_routes(), *ToyPart.admin_routes]
    assert "| GET | `/admin/toy` | the toy | read | merged |" in admin_page(WithToy.admin_routes())


# reloads ---------------------------------------------------------------------------------------


class Noting(Component):
    """Notes that it is asked and changed; with `refusal` it refuses."""

    def __init__(self, name: str, seen: list[str], refusal: str = "") -> None:
        self._name, self._seen, self._refusal = name, seen, refusal

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        self._seen.append(f"asked {self._name}")
        if self._refusal:
            raise ConfigError(self._refusal)
        return lambda: self._seen.append(f"changed {self._name}")


def listed(*components: Component) -> ComponentList:
    in_order = ComponentList()
    in_order.all = components
    return in_order


async def test_a_reload_that_one_component_refuses_changes_none() -> None:
    seen: list[str] = []
    components = listed(Noting("1", seen), Noting("2", seen, "policy: no such"), Noting("3", seen))
    with pytest.raises(ConfigError, match="^policy: no such$"):
        await components.prepare(ConfigChange(load({}, {})))
    assert seen == ["asked 1", "asked 2"]


async def test_all_are_asked_before_one_is_changed() -> None:
    seen: list[str] = []
    swap = await listed(Noting("1", seen), Component(), Noting("2", seen)).prepare(ConfigChange(load({}, {})))
    assert seen == ["asked 1", "asked 2"]
    swap()
    assert seen[2:] == ["changed 1", "changed 2"]


async def test_a_list_is_stopped_once_also_where_its_start_failed() -> None:
    class FailingPart(Component):
        num_stops = 0

        async def start(self, tasks: Tasks) -> None:
            raise ConfigError("port: 80 is taken")

        async def stop(self) -> None:
            self.num_stops += 1

    failing = FailingPart()
    components = listed(failing)
    with pytest.raises(ConfigError, match="^port: 80 is taken .the failing part did not start.$"):
        await components.start()
    await components.stop(0)
    assert failing.num_stops == 1
