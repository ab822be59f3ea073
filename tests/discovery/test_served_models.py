"""Model names of adapters that are loaded and unloaded."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import cast

import pytest

from gateway.core.engine import ModelInfo
from gateway.core.fleet import Fleet
from gateway.core.worker import Worker
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts, workers_of
from gateway.discovery.served_models import ASK_EVERY_S, ServedNames
from gateway.runtime.rate_limited_log import EVERY_S

BASE = ModelInfo("m", "root")
ONE, OTHER = ModelInfo("one", "/a", "m"), ModelInfo("other", "/b", "m")


@dataclass
class FakeProbe:
    answer: tuple[ModelInfo, ...] | str
    num_asked: int = 0

    async def models(self) -> tuple[ModelInfo, ...]:
        self.num_asked += 1
        if isinstance(self.answer, str):
            raise ProbeError(self.answer)
        return self.answer


@dataclass
class FakeEndpoint:
    answers: FakeProbe
    facts: Facts | None
    url: str = "http://w:1"
    workers: tuple[Worker, ...] = ()

    @property
    def probe(self) -> Probe:
        return cast(Probe, self.answers)


@dataclass
class ServedModelsWorld:
    now: float = 0.0
    num_renamed: int = 0
    fleet: Fleet = field(default_factory=Fleet)

    def __post_init__(self) -> None:
        self.names = ServedNames(self.fleet, self._renamed, clock=lambda: self.now)
        facts = Facts("http://w:1", "fake", (BASE, ONE))
        self.endpoint = FakeEndpoint(FakeProbe((BASE, ONE)), facts, workers=workers_of(facts))
        self.member = self.fleet.add(self.endpoint.workers[0])

    def _renamed(self) -> None:
        self.num_renamed += 1

    async def ask(self, *models: ModelInfo) -> list[str]:
        self.now += max(ASK_EVERY_S, EVERY_S)
        self.endpoint.answers.answer = models
        await self.names.ask(self.endpoint)  # type: ignore[arg-type]
        return sorted(self.fleet.served())


async def test_loaded_and_unloaded_adapters_are_known_without_a_restart_of_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = ServedModelsWorld()
    world.member.num_failures = 3
    with caplog.at_level(logging.INFO):
        assert await world.ask(BASE, ONE, OTHER) == ["m", "one", "other"]
        assert await world.ask(BASE, OTHER) == ["m", "other"]
        assert await world.ask(BASE, OTHER) == ["m", "other"]
    assert [e.group.adapter for e in world.fleet.eligible("other")] == ["other"]
    assert world.fleet.get(world.endpoint.workers[0].id) is world.member
    assert world.member.worker is world.endpoint.workers[0]
    assert world.num_renamed == 2
    assert caplog.messages == [
        "worker http://w:1: model names changed: added other, removed none",
        "worker http://w:1: model names changed: added none, removed one",
    ]


async def test_names_are_asked_for_at_intervals_and_at_once_after_a_failed_request() -> None:
    world = ServedModelsWorld()
    await world.ask(BASE, ONE)
    for _ in range(3):
        await world.names.ask(world.endpoint)  # type: ignore[arg-type]
    assert world.endpoint.answers.num_asked == 1
    world.names.doubt("http://w:1")
    world.names.doubt("http://w:2")
    await world.names.ask(world.endpoint)  # type: ignore[arg-type]
    assert world.endpoint.answers.num_asked == 2


async def test_an_engine_without_its_base_model_has_not_unloaded_all_adapters() -> None:
    world = ServedModelsWorld()
    assert await world.ask() == ["m", "one"]
    assert await world.ask(ModelInfo("n", "another")) == ["m", "one"]
    world.endpoint.answers.answer = "no answer"
    world.now += ASK_EVERY_S
    await world.names.ask(world.endpoint)  # type: ignore[arg-type]
    assert (sorted(world.fleet.served()), world.num_renamed) == (["m", "one"], 0)


async def test_an_endpoint_that_has_not_joined_is_not_asked() -> None:
    world = ServedModelsWorld()
    world.endpoint.facts = None
    await world.ask(BASE)
    assert world.endpoint.answers.num_asked == 0


async def test_an_answer_overtaken_by_a_later_one_is_ignored() -> None:
    world, late = ServedModelsWorld(), asyncio.Event()

    class Slow(FakeProbe):
        async def models(self) -> tuple[ModelInfo, ...]:
            self.num_asked += 1
            if self.num_asked == 1:
                await late.wait()
                return BASE, ONE
            return BASE, ONE, OTHER

    world.endpoint.answers = Slow(())

    async def overtake() -> None:
        await world.names.ask(world.endpoint)
        late.set()

    await asyncio.gather(world.names.ask(world.endpoint), overtake())
    assert [served.name for served in world.member.worker.served] == ["m", "one", "other"]
