"""The turns of those who read events: all together hold the loop for TURN_S at a time, however many they are.

A replay of a large cache is thousands of messages from each worker, at once when a gateway starts.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.002
"""After it the requests come first. What has been begun is ended: a message, or a portion of one."""


class Turns:
    """`add` asks for a turn, `take` waits for it; the first to ask is the first to be called."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock  # the loop's own stands still during a turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    def __repr__(self) -> str:
        return f"Turns({len(self._waiting)} waiting)"

    def add(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    async def take(self, call: Callable[[], None]) -> None:
        """Until `call` has had its turn; raises what it raises. Not called if this is cancelled before: the
        worker may be gone."""
        done = asyncio.get_running_loop().create_future()

        def run() -> None:
            if done.done():
                return
            try:
                call()
            except Exception as exc:  # noqa: BLE001 - it is whoever waits who is told
                done.set_exception(exc)
            else:
                done.set_result(None)

        self.add(run)
        await done

    def _run(self) -> None:
        end = self._clock() + TURN_S
        self._is_running = False
        try:
            while self._waiting and self._clock() < end:
                self._waiting.popleft()()
        finally:
            if self._waiting and not self._is_running:
                self._is_running = True
                asyncio.get_running_loop().call_soon(self._run)
