"""Commands that can be given up: the library sends by `asyncio.wait_for`, which before Python 3.12 loses a
cancellation that comes when the sending is just over, and whoever is being stopped would go on for ever."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis


@contextmanager
def heeding() -> Iterator[None]:
    """A cancellation that is lost inside is not lost, whatever else came of it."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


class Stoppable(Redis):
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with heeding():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
