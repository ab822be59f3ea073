"""Reloads: read, compare, apply and report; and the state after a rejected one."""

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.app.reloads import Reloads
from gateway.config import Config, config_of
from gateway.config.diff import ConfigDiff
from gateway.core.errors import ConfigError


class ReloadWorld:
    def __init__(self) -> None:
        self.now = config_of(max_attempts=3, port=1)
        self.applied: list[ConfigDiff] = []
        self.refusal: str | None = None
        self.reloads = Reloads(self.now, self.read)

    def read(self) -> Config:
        return self.now

    async def apply(self, difference: ConfigDiff) -> None:
        if self.refusal:
            raise ConfigError(self.refusal)
        self.applied.append(difference)

    def metrics(self) -> list[str]:
        registry = CollectorRegistry()
        registry.register(self.reloads)
        return [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]


async def test_changes_are_reported_beside_options_that_need_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = ReloadWorld()
    world.now = config_of(max_attempts=4, port=2)
    with caplog.at_level(logging.INFO):
        report = await world.reloads.reload(world.apply)
    assert report == {
        "generation": 2,
        "changed": ["max_attempts"],
        "needs_restart": ["port"],
        "workers_added": [],
        "workers_removed": [],
    }
    assert (
        "max_attempts: 3 -> 4" in caplog.text
        and "changed options that need a restart keep their values: port" in caplog.text
    )
    assert world.metrics() == [
        "kvgate_config_generation 2.0",
        'kvgate_config_reloads_total{result="applied"} 1.0',
        'kvgate_config_reloads_total{result="rejected"} 0.0',
        "kvgate_config_pending_options 1.0",
    ]


async def test_options_that_need_a_restart_are_reported_each_time_and_changes_once() -> None:
    world = ReloadWorld()
    world.now = config_of(max_attempts=4, port=2)
    await world.reloads.reload(world.apply)
    report = await world.reloads.reload(world.apply)
    assert (report["changed"], report["needs_restart"], report["generation"]) == ([], ["port"], 3)
    world.now = config_of(max_attempts=4, port=1)  # the option was put back
    assert (await world.reloads.reload(world.apply))["needs_restart"] == []


async def test_a_rejected_reload_changes_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = ReloadWorld()
    world.now, world.refusal = config_of(max_attempts=4), "policy: no"
    with pytest.raises(ConfigError):
        await world.reloads.reload(world.apply)
    assert (world.reloads.generation, world.reloads.num_refused) == (1, 1)
    assert caplog.text.count("reload rejected, keeping the current configuration: policy: no") == 1
    world.refusal = None
    assert (await world.reloads.reload(world.apply))["changed"] == ["max_attempts", "port"][:1]
    assert repr(world.reloads) == "Reloads(generation=2, refused=1, pending=['port'])"
