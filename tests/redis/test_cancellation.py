import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.redis.cancellation import CancellableRedis, preserve_cancellation
from gateway.redis.master_lookup import Sentinels
from gateway.redis.options import HostPort

A, B = ("a", 1), ("b", 2)


class Library:
    """Command that loses a cancellation, and ends as without one."""

    def __init__(self, end: Any) -> None:
        self.end, self.begun = end, asyncio.Event()

    async def __call__(self, *args: object, **options: object) -> Any:
        self.begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


async def heeded(library: Library) -> None:
    with preserve_cancellation():
        await library()


async def commanded(library: Library) -> None:
    async with CancellableRedis() as client:
        await client.execute_command("PING")


async def locators(library: Library) -> HostPort:
    """Locate the master by Sentinels, asked in order."""
    return await Sentinels([A, B], "m", {})()


@pytest.mark.parametrize("ask", [heeded, commanded, locators])
@pytest.mark.parametrize("end", [b"OK", RedisConnectionError("gone")])
async def test_a_cancellation_lost_by_the_library_is_raised(
    monkeypatch: pytest.MonkeyPatch, end: Any, ask: Callable[[Library], Coroutine[Any, Any, Any]]
) -> None:
    library = Library(end)
    monkeypatch.setattr(Redis, "execute_command", lambda self, *args, **options: library(*args, **options))
    task = asyncio.get_running_loop().create_task(ask(library))
    await library.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_without_a_cancellation_results_and_errors_pass() -> None:
    with preserve_cancellation():
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="x"), preserve_cancellation():
        raise ValueError("x")
