"""Components of a gateway: a new one, and those that fail, hang or refuse."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

import aiohttp
import pytest
from aiohttp.typedefs import Handler
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.admin.app import shows
from gateway.admin.endpoint_table import AdminRoute
from gateway.app import Gateway, component_list
from gateway.app.component import Component, ConfigChange, RoutingObserver, Swap
from gateway.app.component_list import ComponentList, Part, StartFailed
from gateway.app.gateway_parts import Parts
from gateway.app.reloads import Reloads
from gateway.config import Config, load, replaced
from gateway.core.decision import Decided
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.observability.metric_spec import gauge
from gateway.runtime.tasks import Tasks

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


# components that fail, hang or refuse ---------------------------------------------------------


class Noting(Component):
    """Notes what is asked of it under a name; `error` is raised, `None` waits without end."""

    def __init__(self, name: str, seen: list[str], **errors: Exception | None) -> None:
        self._name, self._seen, self._errors = name, seen, errors

    def __str__(self) -> str:
        return self._name

    async def start(self, tasks: Tasks) -> None:
        await self._note("start")

    async def stop(self) -> None:
        await self._note("stop")

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        await self._note("reconfigure")
        return lambda: self._seen.append(f"swap {self._name}")

    async def _note(self, doing: str) -> None:
        self._seen.append(f"{doing} {self._name}")
        if doing in self._errors:
            if (error := self._errors[doing]) is not None:
                raise error
            await asyncio.Event().wait()


def listed(*components: Component) -> ComponentList:
    components_in_order = ComponentList()
    components_in_order.all = components
    return components_in_order


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConfigError("port: 80 is taken"), ConfigError, "^port: 80 is taken .the second did not start.$"),
        (OSError(24, "too many open files"), StartFailed, "^the second did not start: Too many open files$"),
        (KeyError(), StartFailed, "^the second did not start: KeyError$"),
    ],
)
async def test_a_failed_start_stops_those_before_it_and_says_which(
    error: Exception, kind: type[Exception], words: str
) -> None:
    seen: list[str] = []
    components = listed(Noting("first", seen), Noting("second", seen, start=error), Noting("third", seen))
    with pytest.raises(kind, match=words):
        await components.start()
    assert seen == ["start first", "start second", "stop third", "stop second", "stop first"]
    await components.stop(0)
    assert len(seen) == 5, "each is stopped once"


async def test_a_cancelled_start_stops_those_before_it() -> None:
    seen: list[str] = []
    components = listed(Noting("first", seen), Noting("second", seen, start=None))
    start = Tasks().start("start", components.start())
    while "start second" not in seen:  # noqa: ASYNC110
        await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert seen[2:] == ["stop second", "stop first"]


async def test_a_stop_that_hangs_is_cut_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(component_list, "LEAST_SHARE_S", 0.01)
    seen: list[str] = []
    components = listed(
        Noting("first", seen), Noting("second", seen, stop=None), Noting("third", seen, stop=OSError("gone"))
    )
    await components.start()
    with caplog.at_level(logging.ERROR):
        await components.stop(0.06)
    assert seen[3:] == ["stop third", "stop second", "stop first"]
    assert caplog.messages == [
        "the third failed to stop; the others still stop",
        "the second did not stop within 0.02 s: cancelled; the others still stop",
    ]


async def test_a_drain_that_hangs_is_cut_after_the_drain_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class HangingPart(Component):
        async def drain(self, seconds: float) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(component_list, "LEAST_SHARE_S", 0.01)
    seen: list[str] = []
    await listed(Noting("first", seen), HangingPart()).stop(0.02)
    assert seen == ["stop first"]
    assert caplog.messages == [
        "the hanging part did not drain within 0.03 s: cancelled; the others still stop"
    ]


async def test_a_reload_that_one_component_refuses_changes_none() -> None:
    seen: list[str] = []
    refusing = Noting("second", seen, reconfigure=ConfigError("policy: no such"))
    with pytest.raises(ConfigError, match="^policy: no such$"):
        await listed(Noting("first", seen), refusing, Noting("third", seen)).prepare(
            ConfigChange(load({}, {}))
        )
    assert seen == ["reconfigure first", "reconfigure second"]


async def test_all_are_asked_before_one_is_changed() -> None:
    seen: list[str] = []
    swap = await listed(Noting("first", seen), Noting("second", seen)).prepare(ConfigChange(load({}, {})))
    assert seen == ["reconfigure first", "reconfigure second"]
    swap()
    assert seen[2:] == ["swap first", "swap second"]
