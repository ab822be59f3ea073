"""How late the event loop comes to what is due: nobody is served while it is held."""

import asyncio
import time
from collections.abc import Callable

from gateway.metrics import Pauses

INTERVAL_S = 0.01
"""A hold is seen to begin up to this late. A hundred looks a second cost a thousandth of a core."""


class Lag:
    """Looks at the clock in equal intervals of the running loop; `pauses` hears of each, in seconds."""

    def __init__(self, pauses: Pauses, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pauses = pauses
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due = self._clock() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def _look(self) -> None:
        self._pauses.observe(max(0.0, self._clock() - self._due))
        self._arm()
