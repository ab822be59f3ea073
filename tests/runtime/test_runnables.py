"""Runnables that fail or hang, among others that do not."""

import asyncio
import logging

import pytest

from gateway.core.errors import ConfigError
from gateway.runtime import runnables
from gateway.runtime.runnables import Runnable, StartFailed, start_all, stop_all
from gateway.runtime.tasks import Tasks


class Noting(Runnable):
    """Notes what is asked of it under a name; an error of `errors` is raised, `None` waits without end."""

    def __init__(self, name: str, seen: list[str], **errors: Exception | None) -> None:
        self._name, self._seen, self._errors = name, seen, errors

    def __str__(self) -> str:
        return self._name

    async def start(self, tasks: Tasks) -> None:
        await self._note("start")

    async def stop(self) -> None:
        await self._note("stop")

    async def _note(self, doing: str) -> None:
        self._seen.append(f"{doing} {self._name}")
        if doing in self._errors:
            if (error := self._errors[doing]) is not None:
                raise error
            await asyncio.Event().wait()


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
    running = (Noting("first", seen), Noting("second", seen, start=error), Noting("third", seen))
    with pytest.raises(kind, match=words):
        await start_all(running)
    assert seen == ["start first", "start second", "stop third", "stop second", "stop first"]


async def test_a_cancelled_start_stops_those_before_it() -> None:
    seen: list[str] = []
    running = (Noting("first", seen), Noting("second", seen, start=None))
    start = Tasks().start("start", start_all(running))
    while "start second" not in seen:  # noqa: ASYNC110
        await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert seen[2:] == ["stop second", "stop first"]


async def test_a_stop_that_hangs_is_cut_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runnables, "LEAST_SHARE_S", 0.01)
    seen: list[str] = []
    running = (
        Noting("first", seen),
        Noting("second", seen, stop=None),
        Noting("third", seen, stop=OSError("gone")),
    )
    await start_all(running)
    with caplog.at_level(logging.ERROR):
        await stop_all(running, 0.06)
    assert seen[3:] == ["stop third", "stop second", "stop first"]
    assert caplog.messages == [
        "the third failed to stop; the others still stop",
        "the second did not stop within 0.02 s: cut, the others still stop",
    ]


async def test_a_drain_that_hangs_is_cut_after_the_drain_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class HangingPart(Runnable):
        async def drain(self, seconds: float) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(runnables, "LEAST_SHARE_S", 0.01)
    seen: list[str] = []
    await stop_all([Noting("first", seen), HangingPart()], 0.02)
    assert seen == ["stop first"]
    assert caplog.messages == ["the hanging part did not drain within 0.03 s: cut, the others still stop"]


async def test_background_tasks_end_before_the_stop() -> None:
    class BusyPart(Runnable):
        async def start(self, tasks: Tasks) -> None:
            tasks.start("work", asyncio.Event().wait())

        async def stop(self) -> None:
            left.append(len(self.tasks))

    left: list[int] = []
    busy = BusyPart()
    await start_all([busy])
    assert len(busy.tasks) == 1 and str(busy) == "busy part"
    await stop_all([busy], 0)
    assert left == [0]
