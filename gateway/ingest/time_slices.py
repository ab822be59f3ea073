"""Time slices of all event feeds: together they use the loop for SLICE_S at a time, and rest where it has
other work. Work under way is finished: a message, or a portion of one. However many feeds there are, and
whatever they receive, requests come first.

A replay of a large cache is thousands of messages from each worker, at once when a gateway starts.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from gateway.runtime.work_slices import SLICE_S

BUSY_S = 0.0001
"""Duration of a loop iteration, without a slice, that shows other work: an idle one takes 30 us."""
REST_S = 0.004
"""Rest after a slice on a loop with other work: events get a third of it, so that a request, which is several
iterations, meets one or two slices and not one in each."""


class TimeSlices:
    """Queue of work in time slices, first in first out: `add` schedules a call, `run` waits for it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock  # the loop's own stands still during a slice
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False
        self._asked_at: float | None = None

    def __repr__(self) -> str:
        return f"TimeSlices({len(self._waiting)} waiting)"

    def add(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    async def run(self, call: Callable[[], None]) -> None:
        """Run `call` in a time slice and raise what it raises. If cancelled before, `call` is not run: the
        worker may be gone."""
        done = asyncio.get_running_loop().create_future()

        def run() -> None:
            if done.done():
                return
            try:
                call()
            except Exception as exc:  # noqa: BLE001 - passed on to the waiting task
                done.set_exception(exc)
            else:
                done.set_result(None)

        self.add(run)
        await done

    def _run(self) -> None:
        now = self._clock()
        is_busy = self._asked_at is not None and now - self._asked_at > BUSY_S
        self._asked_at, self._is_running = None, False
        end = now + SLICE_S
        try:
            while self._waiting and self._clock() < end:
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._continue(is_busy)

    def _continue(self, is_busy: bool) -> None:
        """Continue at once (the elapsed time shows whether the loop has other work), or after a rest."""
        loop = asyncio.get_running_loop()
        if is_busy:
            self._is_running = True
            loop.call_later(REST_S, self._run)
        elif not self._is_running:
            self._is_running = True
            self._asked_at = self._clock()
            loop.call_soon(self._run)
