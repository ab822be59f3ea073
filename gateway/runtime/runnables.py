"""Runnables: what starts, serves and stops beside others, in one order.

start, downwards ─ … ─ drain, all at once ─ stop, upwards: each within its share of the drain time
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import Any

from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate")

LEAST_SHARE_S = 5.0
"""Least time for a runnable to stop, however short the drain is."""
CUT_S = 1.0
"""Time for a cut runnable to end what it is at."""


class StartFailed(Exception):
    """A runnable did not start: which one, and why."""


class Runnable:
    """Part of a process, with a life of its own. Each method has a default."""

    def __str__(self) -> str:
        """Name for people, of the class: `LogShipperPart` is the log shipper part."""
        return re.sub(r"\B(?=[A-Z])", " ", type(self).__name__).lower()

    @cached_property
    def tasks(self) -> Tasks:
        """Background tasks, which are cancelled before `stop`."""
        return Tasks()

    async def start(self, tasks: Tasks) -> None:
        """Open what it serves; `tasks` run until it stops. Raises ConfigError, or what failed."""

    async def drain(self, seconds: float) -> None:
        """Let the requests in flight end, for at most so many seconds; nothing is stopped yet."""

    async def stop(self) -> None:
        """Close what was opened, by `start` or before. Called once, however far the start came."""


async def start_all(runnables: Sequence[Runnable]) -> None:
    """Start in order. Where one fails, all are stopped, the last one first. Raises StartFailed, or
    ConfigError, which names the option."""
    for each in runnables:
        try:
            await each.start(each.tasks)
        except BaseException as exc:
            await stop_all(runnables, 0.0)
            if isinstance(exc, ConfigError):
                raise ConfigError(f"{exc} (the {each} did not start)") from exc
            if isinstance(exc, Exception):
                raise StartFailed(f"the {each} did not start: {cause_of(exc)}") from exc
            raise


async def stop_all(runnables: Sequence[Runnable], drain_s: float) -> None:
    """Let requests end, then stop all, the last one first. One that takes longer than its share of the drain
    time is cut."""
    until_s = drain_s + LEAST_SHARE_S
    await asyncio.gather(*[_within(until_s, each, "drain", each.drain(drain_s)) for each in runnables])
    share_s = max(LEAST_SHARE_S, drain_s / max(1, len(runnables)))
    for each in reversed(runnables):
        await _within(share_s, each, "stop", _stopped(each))


async def _stopped(runnable: Runnable) -> None:
    await runnable.tasks.stop()
    await runnable.stop()


async def _within(seconds: float, runnable: Runnable, doing: str, work: Coroutine[Any, Any, None]) -> None:
    """Await a step; one that fails or hangs is logged, and does not keep the others from theirs."""
    task = asyncio.get_running_loop().create_task(work, name=f"{doing} {runnable}")
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        log.error("the %s did not %s within %g s: cut, the others still stop", runnable, doing, seconds)
        task.cancel()
        await asyncio.wait({task}, timeout=CUT_S)
    if task.done() and not task.cancelled() and (exc := task.exception()):
        log.error("the %s failed to %s; the others still stop", runnable, doing, exc_info=exc)
