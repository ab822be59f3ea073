"""A limit per time: so much may be taken at once, and comes back at a steady rate.

What a request costs is not all known when it is let in, so that a bucket can be in debt: nothing is let in
until the debt has come back. A request that costs more than the bucket holds is let in by a full one.
"""

import math

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Bucket:
    """`rate` per second; holds `capacity`, and begins full. Time is given, and never goes back."""

    __slots__ = ("capacity", "rate", "_level", "_at_s")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.capacity = capacity
        self.rate = rate
        self._level = capacity
        self._at_s = now

    def __repr__(self) -> str:
        return f"Bucket({self._level:.1f} of {self.capacity:g}, {self.rate:g}/s)"

    def level(self, now: float) -> float:
        """What is left; below 0 in debt."""
        if now > self._at_s:  # who looked at the clock before another one asked changes nothing
            self._level = min(self.capacity, self._level + (now - self._at_s) * self.rate)
            self._at_s = now
        return self._level

    def wait_s(self, cost: float, now: float) -> float:
        """Seconds until so much can be taken; 0: now."""
        # A share of a millionth is what sums of floats may lose.
        missing = min(cost, self.capacity) - self.level(now)
        return missing / self.rate if missing > 1e-6 * self.capacity else 0.0

    def take(self, cost: float, now: float) -> None:
        """Whether there is enough or not."""
        self._level = self.level(now) - cost

    def full_in_s(self, now: float) -> float:
        return (self.capacity - self.level(now)) / self.rate


def duration(seconds: float) -> str:
    """As OpenAI writes it, which is Go's: 6m0s, 1.5s, 12ms."""
    if (milliseconds := math.ceil(seconds * 1000)) < 1000:
        return f"{milliseconds}ms"
    tenths = math.ceil(seconds * 10)
    hours, rest = divmod(tenths, 36_000)
    minutes, rest = divmod(rest, 600)
    text = f"{rest / 10:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
