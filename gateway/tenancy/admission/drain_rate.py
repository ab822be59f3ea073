"""Drain rate of a queue: tokens released per second of waiting, recent seconds weighted most."""

import math
from typing import Final

from mypy_extensions import mypyc_attr

MEMORY_S: Final = 20.0
"""Seconds: long enough to see several requests of a busy fleet leave, short enough to follow a worker that
joins."""
ENOUGH_S: Final = 0.5
"""Observed waiting, in seconds, that the measured rate needs before it replaces the prior."""


@mypyc_attr(acyclic=True)
class DrainRate:
    """Moving average of the tokens that leave a queue per second; only the time between `begin` and `end`
    counts."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._at_s: float | None = None  # time of the last update while something waits

    def __repr__(self) -> str:
        return f"DrainRate({self._tokens:.0f} tokens in {self._seconds:.1f} s)"

    def begin(self, now: float) -> None:
        """Start the clock: the queue is no longer empty."""
        if self._at_s is None:
            self._at_s = now

    def end(self, now: float) -> None:
        self._advance(now)
        self._at_s = None

    def left(self, num_tokens: int, now: float) -> None:
        """Count tokens that left the queue to be served."""
        self._advance(now)
        self._tokens += num_tokens

    def per_s(self, prior: float, now: float) -> float:
        """Tokens per second: the measured rate, or `prior` until enough was seen. At least 1, even while
        nothing moves."""
        self._advance(now)
        return max(self._tokens / self._seconds, 1.0) if self._seconds >= ENOUGH_S else prior

    def _advance(self, now: float) -> None:
        if self._at_s is None or now <= self._at_s:
            return
        kept = math.exp((self._at_s - now) / MEMORY_S)
        self._tokens *= kept
        self._seconds = self._seconds * kept + MEMORY_S * (1 - kept)
        self._at_s = now
