"""Event-loop lag: how late the loop runs what is due; no client is served meanwhile.

Part of it is the loop's own work, which the gateway can reduce; the rest is waiting, above all for a core of
a crowded host.
"""

import asyncio
import time
from collections.abc import Callable

INTERVAL_S = 0.025
"""Time between two readings. A hold that begins between them is measured shorter by the time until the next,
as a request arriving then would have waited. Forty readings a second wake an idle host at 0.2 % of a core."""


class LoopLag:
    """Reads the clock in equal intervals of the running loop. `observe_late` gets how late each reading came,
    in seconds; `observe_work` the part of it that the loop's own thread computed at most."""

    def __init__(
        self,
        observe_late: Callable[[float], None],
        observe_work: Callable[[float], None],
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._observe_late = observe_late
        self._observe_work = observe_work
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cpu_before = self._cpu_clock()
        self._arm()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due = self._clock() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def _look(self) -> None:
        late, cpu = max(0.0, self._clock() - self._due), self._cpu_clock()
        self._observe_late(late)
        self._observe_work(min(late, cpu - self._cpu_before))
        self._cpu_before = cpu
        self._arm()
