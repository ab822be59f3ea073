"""How fast a queue drains: what leaves it in a second in which something waits. Later ones count more."""

import math

from mypy_extensions import mypyc_attr

MEMORY_S = 20.0
"""Long enough to see several requests of a busy fleet leave, short enough to follow a worker that joins."""
ENOUGH_S = 0.5
"""Of waiting that was seen, before it is believed."""


@mypyc_attr(acyclic=True)
class DrainRate:
    """Between `begin` and `end` something waits; other time does not count."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._at_s: float | None = None  # while something waits

    def __repr__(self) -> str:
        return f"DrainRate({self._tokens:.0f} tokens in {self._seconds:.1f} s)"

    def begin(self, now: float) -> None:
        """From now on something waits."""
        if self._at_s is None:
            self._at_s = now

    def end(self, now: float) -> None:
        self._advance(now)
        self._at_s = None

    def left(self, num_tokens: int, now: float) -> None:
        """So much has left to be served."""
        self._advance(now)
        self._tokens += num_tokens

    def per_s(self, prior: float, now: float) -> float:
        """Tokens per second: as seen, or `prior`. Never 0, also where all stands still."""
        self._advance(now)
        return max(self._tokens / self._seconds, 1.0) if self._seconds >= ENOUGH_S else prior

    def _advance(self, now: float) -> None:
        if self._at_s is None or now <= self._at_s:
            return
        kept = math.exp((self._at_s - now) / MEMORY_S)
        self._tokens *= kept
        self._seconds = self._seconds * kept + MEMORY_S * (1 - kept)
        self._at_s = now
