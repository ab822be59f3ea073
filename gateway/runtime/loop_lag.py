"""How late the event loop comes to what is due: nobody is served while it is held.

Part of it is the loop's own work, which is the gateway's to mend; the rest is waiting, for a core of a
crowded host above all.
"""

import asyncio
import time
from collections.abc import Callable

INTERVAL_S = 0.025
"""A hold that begins between two looks is told shorter by what was left until the next, as a request that
came then would have waited. Forty looks a second wake an idle host at 0.2 % of a core."""


class Lag:
    """Reads the clock in equal intervals of the running loop. `observe_late` gets how late each reading
    came, in seconds; `observe_work` how much of that the loop's own thread computed at most."""

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
