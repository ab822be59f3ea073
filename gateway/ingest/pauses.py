"""Pauses of a worker's feed after its events were too many or too large. Pure: time is a parameter."""

FIRST_S = 30.0
"""First pause, of a few probes: operators see it, and answers show what the worker holds."""
LONGEST_S = 600.0
CALM_S = 1800.0
"""Time without another pause after which the next is the first again."""


class Backoff:
    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self._last = float("-inf")

    def __repr__(self) -> str:
        return f"Backoff(next={self._next_s:g} s)"

    def next(self, now: float) -> float:
        """Return the next pause in seconds, twice the one before."""
        pause_s = self._first_s if now - self._last > CALM_S else self._next_s
        self._last, self._next_s = now, min(pause_s * 2, self._longest_s)
        return pause_s
