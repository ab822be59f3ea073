"""Virtual clock: a heap of events that are run in order."""

import heapq
from collections.abc import Callable
from itertools import count

ARRIVAL, STEP = 0, 1
"""Order at one moment: a step's end comes last, so that an arrival finds it in progress."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, int, Callable[[], None]]] = []
        self._numbers = count()

    def __repr__(self) -> str:
        return f"Clock({self.now:.3f} s, {len(self._due)} due)"

    @property
    def is_idle(self) -> bool:
        """True if nothing is due."""
        return not self._due

    def at(self, when: float, call: Callable[[], None], order: int = ARRIVAL) -> None:
        """Schedule a call; calls that are due at once run in the order of scheduling."""
        heapq.heappush(self._due, (when, order, next(self._numbers), call))

    def run(self) -> None:
        """Run until nothing is due any more."""
        while self._due:
            self.now, _, _, call = heapq.heappop(self._due)
            call()
