"""For how long a worker's events are not read after they were too many or too large. Pure: time is a
parameter."""

FIRST_S = 30.0
"""As long as a few probes: an operator sees it, and what the worker holds is learnt from its answers."""
LONGEST_S = 600.0
CALM_S = 1800.0
"""After so long without another, the next pause is the first again."""


class Pauses:
    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self._last = float("-inf")

    def __repr__(self) -> str:
        return f"Pauses(next={self._next_s:g} s)"

    def next(self, now: float) -> float:
        """Seconds; each is twice the one before."""
        pause_s = self._first_s if now - self._last > CALM_S else self._next_s
        self._last, self._next_s = now, min(pause_s * 2, self._longest_s)
        return pause_s
