"""The advised number of workers, without flapping: up at once, down once nothing has needed more for a while.

    needed, rounded up, is above the level, rounded up       the level rises to it at once
    the highest need of the last `hold_s`, and a tenth more,
    rounded up, is below the level, rounded up               the level falls to that
    else                                                     it stays

A part of the need that is over soon, as workers for what waits already, raises the level and does not hold
it: the fall is to the highest `lasting` need, and never below the present one.

A level falls at most once in `hold_s`, to the highest need since, so that noise raises it at most by its own
range in between. For the first `hold_s` the workers that there are (`num_kept`) count as needed: a gateway
that has just started knows nothing of the traffic.
"""

import math
from collections import deque

SPARE = 1.1
"""Room above the highest need of the window that a lower level keeps."""


class Stabilizer:
    def __init__(self) -> None:
        self.level = 0.0
        self.num_changes = 0
        self._began_s: float | None = None
        self._changed_s = -math.inf
        self._peaks: deque[tuple[float, float]] = deque()  # needs that no later one exceeds

    def __repr__(self) -> str:
        return f"Stabilizer({self.level:.2f}, {self.num_changes} changes)"

    def update(
        self, needed: float, num_kept: int, now: float, hold_s: float, lasting: float | None = None
    ) -> float:
        """Return the level after another look; all of the need lasts unless `lasting` is given."""
        lasting = needed if lasting is None else lasting
        if self._began_s is None:
            self._began_s = now
        if now - self._began_s < hold_s:
            needed, lasting = max(needed, float(num_kept)), max(lasting, float(num_kept))
        while self._peaks and self._peaks[-1][1] <= lasting:
            self._peaks.pop()
        self._peaks.append((now, lasting))
        while self._peaks[0][0] <= now - hold_s:
            self._peaks.popleft()
        lower = max(self._peaks[0][1] * SPARE, needed)
        if _whole(needed) > _whole(self.level):
            self._change(needed, now)
        elif now - self._changed_s >= hold_s and _whole(lower) < _whole(self.level):
            self._change(lower, now)
        return self.level

    def _change(self, level: float, now: float) -> None:
        self.level = level
        self._changed_s = now
        self.num_changes += 1


def _whole(num: float) -> int:
    return math.ceil(num - 1e-9)
