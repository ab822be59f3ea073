"""Background tasks: named, kept alive, and logged when they die."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("kvgate.tasks")


class Tasks:
    """Tasks of one owner, which stops them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, name: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended. One that was cancelled before ends in its own way:
        it may be giving something back."""
        tasks = list(self._tasks)
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()):
            log.error("task %s died", task.get_name(), exc_info=exc)


def stop_event() -> asyncio.Event:
    """Return an event that SIGINT or SIGTERM sets."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def on_hangup(do: Callable[[], object]) -> None:
    """Call `do` at each SIGHUP, which would otherwise end the process."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, do)
