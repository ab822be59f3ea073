"""Token bucket: a burst capacity that refills at a steady rate.

The cost of a request is not fully known when it is admitted, so a bucket may be overdrawn: nothing more is
admitted until it has refilled. A request that costs more than the capacity is admitted by a full bucket.
"""

import math

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class TokenBucket:
    """Bucket that refills by `rate` per second up to `capacity`, and starts full. Time is a parameter and
    monotonic."""

    __slots__ = ("capacity", "rate", "_level", "_at_s")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.capacity = capacity
        self.rate = rate
        self._level = capacity
        self._at_s = now

    def __repr__(self) -> str:
        return f"TokenBucket({self._level:.1f} of {self.capacity:g}, {self.rate:g}/s)"

    def level(self, now: float) -> float:
        """Remaining amount; below 0 while overdrawn."""
        if now > self._at_s:  # a caller with an older reading of the clock changes nothing
            self._level = min(self.capacity, self._level + (now - self._at_s) * self.rate)
            self._at_s = now
        return self._level

    def wait_s(self, cost: float, now: float) -> float:
        """Seconds until `cost` can be taken; 0 if it can be now."""
        #  Rounding in sums of floats may lose a millionth.
        missing = min(cost, self.capacity) - self.level(now)
        return missing / self.rate if missing > 1e-6 * self.capacity else 0.0

    def take(self, cost: float, now: float) -> None:
        """Take `cost`, even if it overdraws the bucket."""
        self._level = self.level(now) - cost

    def full_in_s(self, now: float) -> float:
        return (self.capacity - self.level(now)) / self.rate


def duration(seconds: float) -> str:
    """Format a duration as OpenAI's headers do, which is Go's format: 6m0s, 1.5s, 12ms."""
    if (milliseconds := math.ceil(seconds * 1000)) < 1000:
        return f"{milliseconds}ms"
    tenths = math.ceil(seconds * 10)
    hours, rest = divmod(tenths, 36_000)
    minutes, rest = divmod(rest, 600)
    text = f"{rest / 10:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
