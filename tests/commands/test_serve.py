"""Serving stops all that it started, however it ends; running gateways are tested in tests/blackbox."""

import asyncio

import pytest

from gateway.commands import serve as serving
from gateway.commands.serve import _is_done, serve
from gateway.config import Config, config_of
from gateway.core.errors import ConfigError

pytestmark = pytest.mark.process


class Fake:
    """A service by what is done with it."""

    calls: list[str]

    def __init__(self, config: Config, sink: object = None) -> None:
        type(self).calls = []

    async def start(self, workers: object, warm_up_s: float) -> None:
        self.calls.append("start")
        raise ConfigError("refused")

    async def stop(self, drain_s: float | None = None) -> None:
        self.calls.append(f"stop {drain_s}")


async def test_what_was_started_is_stopped_also_when_starting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SingleProcess", Fake)
    with pytest.raises(ConfigError, match="refused"):
        await serve(config_of(port=0, admin_port=0))
    assert Fake.calls == ["start", "stop 0.0"]


async def test_a_stop_ends_a_start_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Fake):
        async def start(self, workers: object, warm_up_s: float) -> None:
            self.calls.append("start")
            stop.set()
            await asyncio.Event().wait()

    stop = asyncio.Event()
    monkeypatch.setattr(serving, "SingleProcess", Hanging)
    monkeypatch.setattr(serving, "stop_event", lambda: stop)
    assert await serve(config_of(port=0, admin_port=0)) == 0
    assert Hanging.calls == ["start", "stop 0.0"]


async def test_waiting_for_one_of_two() -> None:
    event = asyncio.Event()
    assert await _is_done(asyncio.sleep(0), unless=event)
    event.set()
    assert not await _is_done(asyncio.Event().wait(), unless=event)
