"""Cold-start time of a group: from the need of another worker to its join, learnt from joins."""

import statistics
from collections import deque

MOST_S = 3600.0
"""A need that no join answers for so long is no cold start."""
KEPT = 9


class ColdStart:
    """The latest cold starts; `seconds` is their median, None before the first."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._num_up = 0
        self._seen: deque[float] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        return f"ColdStart({self.seconds} s, {len(self._seen)} seen)"

    @property
    def seconds(self) -> float | None:
        return statistics.median(self._seen) if self._seen else None

    def left_s(self, now: float) -> float | None:
        """Seconds until the next worker is expected; None before the first was seen."""
        if self.seconds is None or self._since_s is None:
            return self.seconds
        return max(self.seconds - (now - self._since_s), 0.0)

    def look(self, num_desired: int, num_up: int, now: float) -> None:
        """Take the number of workers that are advised, and that are up."""
        since_s, has_joined = self._since_s, num_up > self._num_up
        self._num_up = num_up
        if since_s is not None and has_joined and now - since_s <= MOST_S:
            self._seen.append(now - since_s)
            self._since_s = now  # the next one, if it takes more
        if num_desired <= num_up:
            self._since_s = None
        elif self._since_s is None or now - self._since_s > MOST_S:
            self._since_s = now
