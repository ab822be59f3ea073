"""Serving stops all services that it started, however it ends; tests/blackbox has running gateways."""

import asyncio

import pytest

from gateway.commands import serve as serving
from gateway.commands.serve import _is_done, serve
from gateway.config import Config, config_of
from gateway.core.errors import ConfigError

pytestmark = pytest.mark.process


class FakeService:
    """Service that notes its calls."""

    calls: list[str]

    def __init__(self, config: Config, sink: object = None) -> None:
        type(self).calls = []

    async def start(self, workers: object, warm_up_s: float) -> None:
        self.calls.append("start")
        raise ConfigError("refused")

    async def stop(self, drain_s: float | None = None) -> None:
        self.calls.append(f"stop {drain_s}")


async def test_started_services_are_stopped_when_a_later_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SingleProcess", FakeService)
    with pytest.raises(ConfigError, match="refused"):
        await serve(config_of(port=0, admin_port=0))
    assert FakeService.calls == ["start", "stop 0.0"]


async def test_a_stop_ends_a_start_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(FakeService):
        async def start(self, workers: object, warm_up_s: float) -> None:
            self.calls.append("start")
            stop.set()
            await asyncio.Event().wait()

    stop = asyncio.Event()
    monkeypatch.setattr(serving, "SingleProcess", Hanging)
    monkeypatch.setattr(serving, "stop_event", lambda: stop)
    assert await serve(config_of(port=0, admin_port=0)) == 0
    assert Hanging.calls == ["start", "stop 0.0"]


async def test_the_first_of_two_events_ends_the_wait() -> None:
    event = asyncio.Event()
    assert await _is_done(asyncio.sleep(0), unless=event)
    event.set()
    assert not await _is_done(asyncio.Event().wait(), unless=event)
