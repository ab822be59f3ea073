"""Redis commands that can be cancelled on Python 3.11.

redis-py sends with `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives just when
the sending is done: a task being stopped would go on for ever.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis


@contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Raise CancelledError at the end if the task was cancelled inside, even if the cancellation got lost."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


class CancellableRedis(Redis):
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with preserve_cancellation():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
