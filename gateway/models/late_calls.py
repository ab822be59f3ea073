"""Calls that go on after the wait for them has ended, so that their true time and their answer are learnt."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MAX_LATE = 16
"""Calls at most that go on unawaited; further ones are cancelled."""


class LateCalls:
    """Runs calls of `limit_s` seconds at most each, which go on within that after their caller."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._late: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"LateCalls({len(self)} go on)"

    def __len__(self) -> int:
        return len(self._late)

    async def run(self, call: Coroutine[Any, Any, T], wait_s: float) -> T:
        """Run a call and return its result. Raises TimeoutError after `wait_s`, when the call goes on, or at
        the limit, and what the call raises. A caller that is cancelled wants no answer, and ends the call."""
        task = asyncio.get_running_loop().create_task(self._within_limit(call))
        try:
            done, _ = await asyncio.wait([task], timeout=max(wait_s, 0.0))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            self._go_on(task)
            raise TimeoutError
        return task.result()

    def cancel(self) -> None:
        """Cancel all calls that go on."""
        for task in list(self._late):
            task.cancel()

    def _go_on(self, task: asyncio.Task[Any]) -> None:
        task.add_done_callback(self._ended)
        if len(self._late) < MAX_LATE:
            self._late.add(task)
        else:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # counted where it was raised

    async def _within_limit(self, call: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self._limit_s):
            return await call
